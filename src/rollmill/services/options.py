"""What serving can be asked for: the keys of `ng_run` and of `rollmill serve`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from rollmill.collection.options import Head, Limits, Port, Seconds
from rollmill.model import Secret
from rollmill.rollout import Deadlines


class ServeOptions(Struct, frozen=True, kw_only=True):
    """A name, its default, and a sentence each: this is also the help."""

    head_server: Head = Head()
    """Where the head server listens: `head_server.host` and `head_server.port`."""
    default_host: str = "127.0.0.1"
    """Where services listen that name no `host` of their own; one that is not loopback needs `access_token`."""
    use_absolute_ip: bool = False
    """Listen on this machine's own address instead of `default_host`."""
    port_range_low: Port = 10001
    """The first port that is given to services that name none of their own."""
    port_range_high: Port = 20000
    """The last one."""
    access_token: Secret | None = None
    """What every request has to show as `Authorization: Bearer TOKEN`; without it only this machine is served."""
    allowed_hosts: list[str] = []
    """Other names by which clients may call the services, where no token protects them."""
    num_workers: Annotated[int, Meta(ge=1)] = 1
    """How many processes serve the instances that share one, where an instance says nothing itself."""
    model_endpoint_readiness_timeout_seconds: Annotated[float, Meta(ge=0)] = 0.0
    """How long to wait for models that do not answer yet before the services count as ready; 0 only says it."""
    when_a_service_dies: Literal["restart", "stop"] = "restart"
    """`restart` starts it again, three times in a minute at most; `stop` ends all of them."""
    start_s: Seconds = 600.0
    """How long a service may take until it answers."""
    session_idle_s: Seconds = 3600.0
    """After how long an environment's session ends that nobody uses."""
    outage_s: Seconds = 50.0
    """How long a service waits for another one, and calls of a model for an answer."""
    limits: Limits = Limits()
    """Bounds by name: `limits.models.NAME.concurrency`, `.requests_per_minute`, `.tokens_per_minute`."""
    deadlines: Deadlines = Deadlines()
    """How long each stage of a rollout may take: `deadlines.play_s` and so on."""
    profiling_enabled: bool = False
    """Measure where the time goes, each instance in a process of its own; it slows down what computes."""
    profiling_results_dirpath: Annotated[str, Meta(min_length=1)] | None = None
    """The folder for that: the profile of a service is `<folder>/<class>___<name>/<name>.log` in it."""
    required_str: str = ""
    """Only functions with this in their name or file are listed in profiles."""
    nemo_gym_log_dir: str | None = None
    """A folder in which each service's output is kept, too, in files that rotate at 10 MB."""
    uv_venv_dir: str | None = None
    """Where the environments of services with their own requirements are kept, instead of in their folders."""
    skip_venv_if_present: bool = False
    """Take such an environment as it is, if it is there."""
    dry_run: bool = False
    """Make every instance, and end."""
