"""What a collection can be asked for: the keys of `ng_collect_rollouts` and of `rollmill collect`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from rollmill.model import Secret
from rollmill.rollout import Deadlines

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Warn = Literal["equal_rewards", "empty_answers", "truncated", "failures"]


class ModelLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """What one model may be asked for."""

    concurrency: Count | None = None
    requests_per_minute: Annotated[float, Meta(gt=0)] | None = None
    tokens_per_minute: Annotated[float, Meta(gt=0)] | None = None


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds by the names of instances."""

    models: dict[str, ModelLimits] = {}
    environments: dict[str, Count] = {}


class Head(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a head server listens."""

    host: str = "127.0.0.1"
    port: Port = 11000

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    """What a million tokens cost."""

    input: Annotated[float, Meta(ge=0)]
    output: Annotated[float, Meta(ge=0)]
    cached: Annotated[float, Meta(ge=0)] | None = None


class CollectOptions(Struct, frozen=True, kw_only=True):
    """A name, its default, and a sentence each: this is also the help."""

    agent_name: str | None = None
    """The agent for rows that name none in `agent_ref`."""
    input_jsonl_fpath: str | list[str] | None = None
    """The tasks, one JSON row a line: a file (.jsonl, .gz, .zst), a pattern, a list of them, or - for standard input.
    With `follow` also a folder. Without it the agent's own `datasets` serve."""
    follow: bool = False
    """Go on reading an input that grows: files that are appended to or replaced, folders and patterns that files join,
    a stream until it ends. A row is played as soon as its line is whole."""
    follow_idle_s: Seconds | None = None
    """End when nothing new has come for so long and all has ended; by default a run that follows ends when it is told
    to."""
    prompt_config: str | None = None
    """A YAML file with the templates `user` and `system`, from which each row's prompt is made: `{field}` stands for a
    field of the row. The rows then bring no prompt of their own."""
    output_jsonl_fpath: Annotated[str, Meta(min_length=1)]
    """Where the rollouts go, one JSON row a line (.jsonl or .jsonl.zst). What is there already is kept, and not played
    again."""
    limit: Annotated[int, Meta(ge=0)] | None = None
    """Take only the first so many tasks; 0 or null takes all."""
    num_repeats: Count | dict[str, Count] | None = 1
    """How often each task is played: a number, or a number by agent with `_default` for the others."""
    num_repeats_add_seed: bool = False
    """Ask every slot with a `seed` of its own, which follows from `seed` and stays the same in every run."""
    num_samples_in_parallel: Count | None = None
    """How many rollouts run at once; by default as many as the model turns out to serve well."""
    responses_create_params: dict[str, Any] = {}
    """Overrides for every row's `responses_create_params`: temperature, max_output_tokens, …"""
    seed: int = 0
    """The seed of tasks that an environment makes itself."""
    workers: Count = 1
    """How many processes play; one is this process itself."""
    durability: Literal["process", "os", "power"] = "os"
    """What a recorded rollout survives: the death of this process; and a crash of the machine but for its last moment;
    and a power cut."""
    verify: Literal["now", "defer"] = "now"
    """`defer` records rollouts with a placeholder for their reward, to be verified later."""
    skip_verification_reward: float = 0.0
    """The placeholder."""
    new_segment: bool = False
    """Go on in an output of another model, sampling, agent or environment: the change is recorded as a segment."""
    retry_failed: bool = False
    """Play the slots again that failed for good."""
    skip_bad_rows: bool = False
    """Pass over rows of the input that cannot be played, instead of stopping."""
    max_attempts: Count = 3
    """How often a slot is tried before it counts as failed."""
    max_failures: Annotated[float, Meta(gt=0)] | None = None
    """Stop when so many slots have failed for good; below 1, such a share of those that ended."""
    outage_s: Seconds = 50.0
    """Stop when no model call has succeeded for so long."""
    grace_s: Seconds = 20.0
    """How long running rollouts may take to end after SIGTERM."""
    stop_if: list[Warn] = []
    """Stop when one of these warnings comes up: equal_rewards, empty_answers, truncated, failures."""
    limits: Limits = Limits()
    """Bounds by name: `limits.models.policy_model.requests_per_minute`, `.tokens_per_minute`, `.concurrency`, and
    `limits.environments.NAME`."""
    prices: dict[str, Price] = {}
    """What a million tokens of a model cost, for the estimate: `prices.MODEL.input`, `.output`, `.cached`."""
    progress_every_s: Seconds = 10.0
    """How often a line of progress is written where there is no terminal."""
    nemo_gym_files: bool = False
    """Write `<stem>_materialized_inputs.jsonl` and `<stem>_failures.jsonl` beside the output at the end, as NeMo Gym
    does."""
    head_server: Head = Head()
    """Where services are asked for that play, if no configuration is given: `head_server.host` and `.port`."""
    access_token: Secret | None = None
    """What those services want to see, where they are not on this machine alone."""
    profiling_enabled: bool = False
    """Measure where the time goes, and write it down at the end; it slows down what computes."""
    profiling_results_dirpath: Annotated[str, Meta(min_length=1)] | None = None
    """The folder for that: the profile is `<folder>/<agent>/<agent>.log` in it."""
    deadlines: Deadlines = Deadlines()
    """How long each stage of a rollout may take: `deadlines.play_s` and so on."""

    def repeats(self, agent: str) -> int:
        if isinstance(self.num_repeats, dict):
            return self.num_repeats.get(agent, self.num_repeats.get("_default", 1))
        return self.num_repeats or 1
