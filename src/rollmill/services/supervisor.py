"""Starts the processes that serve a configuration, says how they are, and keeps them."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from rollmill.config import Instance
from rollmill.config.secrets import mask_text
from rollmill.config.tree import Tree
from rollmill.errors import ConfigError, ServiceError
from rollmill.instances import addresses_of
from rollmill.launch import Setup
from rollmill.serve.guard import Guard
from rollmill.serve.listen import Listener
from rollmill.services.head import HeadServer, Shown, tree_of
from rollmill.services.layout import Group, Served, groups, listen_at, serve_at, workers_of
from rollmill.services.member import HostMember, Member, ProgramMember
from rollmill.services.messages import Notice, Place, Serve
from rollmill.services.options import ServeOptions
from rollmill.services.output import Output
from rollmill.services.venv import python_of

_MOST_RESTARTS, _WITHIN_S = 3, 60.0


class Supervisor:
    """All services of a configuration. Entered, they answer; left, nothing of them is there any more."""

    def __init__(
        self,
        instances: Mapping[str, Instance],
        options: ServeOptions,
        *,
        tree: Tree,
        secrets: list[str],
        say: Callable[[str], None],
        head: bool = True,
    ) -> None:
        """`tree` is the configuration without its `secrets`; without `head` nobody else is told of the services."""
        self._instances, self._options = dict(instances), options
        self._tree, self._secrets, self._say = tree, secrets, say
        self._hide: Callable[[str], str] = functools.partial(mask_text, secrets=secrets)
        self._has_head = head and not options.dry_run
        self._groups = groups(instances, options, apart=options.profiling_enabled)
        self._served: dict[str, Served] = {}
        self._members: list[Member] = []
        self._notices: dict[str, str] = {}
        self._keeping: list[asyncio.Task[None]] = []
        self._deaths: deque[float] = deque(maxlen=_MOST_RESTARTS)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _start(self) -> None:
        options = self._options
        if options.profiling_enabled and options.profiling_results_dirpath is None:
            raise ConfigError(
                "profiling_enabled=true: where do the profiles go? Give +profiling_results_dirpath=FOLDER, for example "
                "+profiling_results_dirpath=results/profiling"
            )
        # Before anything is started: a port that is taken, or a host that needs a token.
        head = self._guard(options.head_server.host)
        listening = _head_socket(options) if self._has_head else None
        if listening is not None:
            self._stack.callback(listening.close)
        self._served = serve_at(self._instances, options)
        for one in self._served.values():
            self._stack.callback(one.close)
            self._guard(one.host)
        self._pythons = {group.name: await self._python(group) for group in self._groups if group.requirements}
        self._members = [self._member(group, n) for group in self._groups for n in range(group.workers)]
        if listening is not None:
            server = HeadServer(self._told_tree(), self.shown, head)
            await self._stack.enter_async_context(Listener(server.app, [listening]))
        await self._start_all()
        if not options.dry_run:
            self._keeping = [asyncio.create_task(self._keep(member)) for member in self._members]

    async def _start_all(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for member in self._members:
                    group.create_task(member.start(self._options.start_s))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _end(self) -> None:
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        await asyncio.gather(*(member.end() for member in self._members), return_exceptions=True)
        await self._stack.aclose()

    async def watch(self) -> None:
        """Raises `ServiceError` when a service is gone for good."""
        await asyncio.gather(*self._keeping)

    def shown(self) -> list[Shown]:
        """The services as they are now."""
        return [self._shown_of(name, group) for group in self._groups for name in group.instances]

    @property
    def addresses(self) -> dict[str, str]:
        return addresses_of(self._instances) | {name: one.url for name, one in self._served.items()}

    @property
    def notices(self) -> dict[str, str]:
        """What a person should know of some of them."""
        return dict(self._notices)

    # Their parts.

    def _guard(self, host: str) -> Guard:
        return Guard(host, self._options.access_token, tuple(self._options.allowed_hosts))

    async def _python(self, group: Group) -> str:
        options, requirements = self._options, group.requirements
        if requirements is None:
            raise ValueError(group.name)
        instance = self._instances[group.instances[0]]
        root = Path(options.uv_venv_dir) / instance.kind / instance.implementation if options.uv_venv_dir else None
        folder = (root or requirements.parent) / ".venv"
        return await python_of(requirements, folder.absolute(), self._say, as_it_is=options.skip_venv_if_present)

    def _member(self, group: Group, worker: int) -> Member:
        folder = Path(self._options.nemo_gym_log_dir) if self._options.nemo_gym_log_dir else None
        name = group.name if group.workers == 1 else f"{group.name}.{worker}"
        output = Output(name, self._say, self._hide, folder)
        if group.program is not None:
            served = self._served[group.name]
            tree = yaml.safe_dump(self._told_tree(), sort_keys=False)
            given = {**served.instance.fields, "services": {name: one.url for name, one in self._served.items()}}
            return ProgramMember(
                *(group, group.program, output),
                served=served,
                tree=tree,
                given=given,
                python=self._pythons.get(group.name, sys.executable),
            )
        places = self._places(group, worker)
        return HostMember(
            group,
            worker,
            output,
            order=functools.partial(self._order, group),
            sockets=[one[worker] for _, served in places for one in (served.sockets, served.private) if one],
            heard=self._noticed,
            python=self._pythons.get(group.name, sys.executable),
        )

    def _places(self, group: Group, worker: int) -> list[tuple[str, Served]]:
        """What one of a group's processes serves: instances with fewer workers are in the first ones."""
        found = [(name, self._served[name]) for name in group.instances]
        return [(name, served) for name, served in found if worker < len(served.sockets)]

    def _order(self, group: Group, worker: int) -> Serve:
        options = self._options
        places = self._places(group, worker)
        here = set(group.instances)
        setup = Setup(
            instances=self._instances,
            agents=(),
            limits=options.limits,
            outage_s=options.outage_s,
            deadlines=options.deadlines,
            addresses={name: url for name, url in self.addresses.items() if name not in here},
            access_token=options.access_token.reveal() if options.access_token else "",
        )
        return Serve(
            setup,
            [
                Place(name, served.sockets[worker].fileno(), served.host, private, served.siblings)
                for name, served in places
                for private in [served.private[worker].fileno() if served.private else -1]
            ],
            path=sys.path,
            secrets=self._secrets,
            names=options.allowed_hosts,
            idle_s=options.session_idle_s,
            wait_s=options.model_endpoint_readiness_timeout_seconds,
            worker=worker,
            dry=options.dry_run,
            profiles=str(Path(options.profiling_results_dirpath or "").absolute()) if options.profiling_enabled else "",
            required_str=options.required_str,
        )

    def _noticed(self, notice: Notice) -> None:
        before = self._notices.pop(notice.name, "")
        if notice.text:
            self._notices[notice.name] = self._hide(notice.text)
            self._say(f"{notice.name} is up, but {self._hide(notice.text)}")
        elif before:
            self._say(f"{notice.name}: its model answers now")

    def _told_tree(self) -> Tree:
        head = self._options.head_server
        places = {
            name: (one.instance.kind, one.instance.implementation, one.host, one.port)
            for name, one in self._served.items()
        }
        return tree_of(self._tree | {"head_server": {"host": head.host, "port": head.port}}, places)

    def _shown_of(self, name: str, group: Group) -> Shown:
        instance, served = self._instances[name], self._served[name]
        members = [member for member in self._members if member.group is group]
        members = members[: len(served.sockets)]
        pids = [member.pid for member in members if member.pid is not None]
        ready = all(member.serving for member in members)
        state = "ready" if ready else "restarting" if any(member.restarts for member in members) else "starting"
        return Shown(
            name=name,
            server_type=instance.kind,
            url=served.url,
            host=served.host,
            port=served.port,
            pid=pids[0] if pids else None,
            state="no answer from its model" if state == "ready" and name in self._notices else state,
            process_name=group.name,
            config_path=name,
            dir_path=str(group.program.parent) if group.program else "",
            entrypoint=instance.entrypoint or "app.py",
            num_workers=workers_of(instance, self._options),
        )

    # Watching over them.

    async def _keep(self, member: Member) -> None:
        while True:
            await member.ended.wait()
            self._say(self._hide(member.died()))
            self._count_death(member)
            await asyncio.sleep(0.2 * 2**member.restarts)
            member.restarts += 1
            try:
                await member.start(self._options.start_s)
            except ServiceError:
                if not member.ended.is_set():
                    raise
            else:
                self._say(f"{member.name} is up again")

    def _count_death(self, member: Member) -> None:
        if self._options.when_a_service_dies == "stop":
            raise ServiceError(f"{member.name} has ended, and when_a_service_dies is stop")
        now = time.monotonic()
        if len(self._deaths) == _MOST_RESTARTS and now - self._deaths[0] < _WITHIN_S:
            times = f"{_MOST_RESTARTS + 1} times within {_WITHIN_S:g} s"
            raise ServiceError(f"services have ended {times}, {member.name} last")
        self._deaths.append(now)


def _head_socket(options: ServeOptions) -> Any:
    head = options.head_server
    try:
        return listen_at(head.host, head.port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise ConfigError(f"head_server: {head.host}:{head.port}: {os.strerror(error.errno or 0)}") from None
        raise ConfigError(
            f"head_server.port: port {head.port} of {head.host} is in use, perhaps by another ng_run (ng_status shows "
            "it): stop that one, or give +head_server.port=…"
        ) from None
