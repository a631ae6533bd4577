"""Which process serves which instances, and where each of them listens."""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from rollmill import plugins
from rollmill.config import Instance
from rollmill.errors import ConfigError
from rollmill.serve.guard import is_loopback
from rollmill.services.options import ServeOptions

SHARED = "shared"
"""The name of the process, or of the processes, that all instances share which ask for nothing else."""
_BACKLOG = 2048


class Served(Struct, frozen=True):
    """An instance and where it listens: one socket for each process that serves it."""

    instance: Instance
    host: str
    port: int
    sockets: tuple[socket.socket, ...]
    private: tuple[socket.socket, ...] = ()
    """Of each process one, where several hold sessions: there the others ask for those that are not theirs."""

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - a client's side of it
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def close(self) -> None:
        for one in (*self.sockets, *self.private):
            one.close()

    @property
    def siblings(self) -> list[str]:
        return [f"http://127.0.0.1:{one.getsockname()[1]}" for one in self.private]


class Group(Struct, frozen=True):
    """Instances that one process serves, or several processes that are alike."""

    name: str
    instances: tuple[str, ...]
    workers: int = 1
    program: Path | None = None
    """What is run, where it is somebody's own program."""
    requirements: Path | None = None
    """What it needs in a virtual environment of its own."""


def groups(instances: Mapping[str, Instance], options: ServeOptions, *, apart: bool = False) -> list[Group]:
    """Who shares a process; with `apart`, nobody does."""
    alone: list[Group] = []
    together: list[str] = []
    for name, instance in instances.items():
        if instance.url:
            # Somebody else serves it.
            continue
        file = plugins.own_file(instance.kind, instance.implementation, instance.entrypoint)
        workers, requirements = workers_of(instance, options), _requirements(instance, file)
        if file is not None and plugins.is_program(file):
            _refuse_in_public(instance, options)
            if instance.num_workers not in (None, 1):
                raise ConfigError(f"{instance.at}.num_workers: a program of its own serves in one process")
            alone.append(Group(name, (name,), program=file, requirements=requirements))
        elif requirements:
            alone.append(Group(name, (name,), workers, requirements=requirements))
        elif apart or instance.isolation == "process":
            alone.append(Group(name, (name,), workers))
        else:
            together.append(name)
    shared = max((workers_of(instances[name], options) for name in together), default=1)
    return [*([Group(SHARED, tuple(together), shared)] if together else []), *alone]


def _refuse_in_public(program: Instance, options: ServeOptions) -> None:
    host = program.host or host_of(options)
    if not is_loopback(host):
        raise ConfigError(
            f"{program.at}.host: a program of its own asks nobody for access_token, so it cannot listen on {host}, "
            "where others reach it: give it host: 127.0.0.1, and the services beside it reach it there"
        )


def workers_of(instance: Instance, options: ServeOptions) -> int:
    return instance.num_workers or options.num_workers


def _requirements(instance: Instance, file: Path | None) -> Path | None:
    path = file.parent / "requirements.txt" if file is not None and file.suffix == ".py" else None
    wanted = path is not None and path.is_file() and bool(needed(path))
    if instance.isolation == "venv" and not wanted:
        where = path or "the instance has no folder of its own with Python in it"
        raise ConfigError(f"{instance.at}.isolation: venv needs a requirements.txt with something in it: {where}")
    return path if wanted and instance.isolation in (None, "venv") else None


def needed(requirements: Path) -> list[str]:
    """What a file of requirements asks for beside this package, or NeMo Gym, for which it stands."""
    lines = [line.strip() for line in requirements.read_text("utf-8").splitlines()]
    ours = ("-e nemo-gym", "nemo-gym", "nemo_gym", "rollmill", "-e rollmill")
    return [line for line in lines if line and not line.startswith(("#", *ours))]


def serve_at(instances: Mapping[str, Instance], options: ServeOptions) -> dict[str, Served]:
    """A place for every instance, where it listens already. Raises `ConfigError` for a port that is taken."""
    served: dict[str, Served] = {}
    free = _free_ports(options)
    try:
        for name, instance in instances.items():
            if not instance.url:
                served[name] = _place(instance, options, free)
    except BaseException:
        for one in served.values():
            one.close()
        raise
    return served


def _place(instance: Instance, options: ServeOptions, free: Iterator[int]) -> Served:
    host, count = instance.host or host_of(options), workers_of(instance, options)
    if instance.port:
        sockets = _listening(host, instance.port, count, instance.at, named=True)
        return Served(instance, host, instance.port, sockets, _private(instance, count))
    for port in free:
        try:
            return Served(instance, host, port, _listening(host, port, count, instance.at), _private(instance, count))
        except PortTakenError:
            continue
    raise ConfigError(f"no port from {options.port_range_low} to {options.port_range_high} is free: widen the range")


def _private(instance: Instance, count: int) -> tuple[socket.socket, ...]:
    holds_sessions = instance.kind == "resources_servers" and count > 1
    return tuple(listen_at("127.0.0.1", 0) for _ in range(count)) if holds_sessions else ()


def host_of(options: ServeOptions) -> str:
    return socket.gethostbyname(socket.gethostname()) if options.use_absolute_ip else options.default_host


def _free_ports(options: ServeOptions) -> Iterator[int]:
    ports = range(options.port_range_low, options.port_range_high + 1)
    if not ports:
        raise ConfigError(f"port_range_high: {options.port_range_high} is below port_range_low")
    # From anywhere on: several systems on one machine would try the same ones in turn.
    start = random.randrange(len(ports))
    taken = options.head_server.port
    return (port for port in (*ports[start:], *ports[:start]) if port != taken)


class PortTakenError(Exception):
    """Somebody listens there."""


def _listening(host: str, port: int, count: int, at: str, *, named: bool = False) -> tuple[socket.socket, ...]:
    """`count` sockets on one port, which somebody may have `named`; the kernel shares out connections among them."""
    found: list[socket.socket] = []
    try:
        # Alone first: sockets that share a port would share it with anybody's that does the same.
        listen_at(host, port, shared=False).close()
        found += (listen_at(host, port, shared=count > 1) for _ in range(count))
    except OSError as error:
        for one in found:
            one.close()
        if error.errno != errno.EADDRINUSE:
            raise ConfigError(f"{at}.host: {host}:{port} cannot be listened on: {error.strerror}") from None
        if named:
            raise ConfigError(f"{at}.port: port {port} of {host} is in use; name another, or none") from None
        raise PortTakenError from None
    return tuple(found)


def listen_at(host: str, port: int, *, shared: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            # A port on which connections of the last run are still ending is free.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening
