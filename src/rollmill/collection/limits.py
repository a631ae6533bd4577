"""Who may begin: how many rollouts run at once, by a number, by what the model serves, and by environment."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from rollmill.collection.throttle import Throttle
from rollmill.collection.worker import Admission
from rollmill.model import Conversation, Model
from rollmill.types import Reply

MOST_RUNNING = 4096


class LocalAdmission(Admission, Protocol):
    """An admission in the process that plays, where it can see who is at work."""

    def present(self, agent: str, model: Model) -> AbstractContextManager[Model]:
        """The model as one rollout is to call it, for as long as it is played."""
        ...


class Places:
    """So many at once."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._freed = asyncio.Event()

    def room(self, agent: str) -> bool:
        return self._free > 0

    def enter(self, agent: str) -> None:
        self._free -= 1

    def leave(self, agent: str) -> None:
        self._free += 1
        self._freed.set()

    async def changed(self) -> None:
        await self._freed.wait()
        # Afterwards: what was freed between the caller's look and this wait must not be forgotten.
        self._freed.clear()

    def present(self, agent: str, model: Model) -> AbstractContextManager[Model]:
        return nullcontext(model)


class Present:
    """The model of one rollout, which rests between its calls: its tools run, or its verification."""

    def __init__(self, model: Model, admission: AdaptiveAdmission) -> None:
        self.name = model.name
        self._model = model
        self._admission = admission
        self._rests = False

    async def reply(self, conversation: Conversation) -> Reply:
        self.asks()
        try:
            return await self._model.reply(conversation)
        finally:
            self.rests()

    def asks(self) -> None:
        if self._rests:
            self._rests = False
            self._admission.resting -= 1

    def rests(self) -> None:
        if not self._rests:
            self._rests = True
            self._admission.resting += 1
        self._admission.look()


class AdaptiveAdmission:
    """As many as keep a model busy: those that rest make room for others, while no call waits for its permit."""

    def __init__(self, throttle: Throttle, *, most: int = MOST_RUNNING) -> None:
        self._throttle = throttle
        self._most = most
        self.running = self.resting = 0
        self._freed = asyncio.Event()

    def room(self, agent: str) -> bool:
        throttle = self._throttle
        return self.running - self.resting < throttle.limit and not throttle.waiting and self.running < self._most

    def enter(self, agent: str) -> None:
        self.running += 1

    def leave(self, agent: str) -> None:
        self.running -= 1
        self._freed.set()

    async def changed(self) -> None:
        await self._freed.wait()
        self._freed.clear()

    def look(self) -> None:
        """After every call: to wake the one who waits for nothing would cost more than to look."""
        if not self._freed.is_set() and self.room(""):
            self._freed.set()

    @contextmanager
    def present(self, agent: str, model: Model) -> Iterator[Model]:
        present = Present(model, self)
        try:
            yield present
        finally:
            present.asks()


class Bounded:
    """An admission in which some agents have a bound of their own."""

    def __init__(self, admission: LocalAdmission, most: Mapping[str, int]) -> None:
        self._admission = admission
        self._most = dict(most)
        self._running: Counter[str] = Counter()

    def room(self, agent: str) -> bool:
        most = self._most.get(agent)
        return (most is None or self._running[agent] < most) and self._admission.room(agent)

    def enter(self, agent: str) -> None:
        self._running[agent] += 1
        self._admission.enter(agent)

    def leave(self, agent: str) -> None:
        self._running[agent] -= 1
        self._admission.leave(agent)

    async def changed(self) -> None:
        await self._admission.changed()

    def present(self, agent: str, model: Model) -> AbstractContextManager[Model]:
        return self._admission.present(agent, model)


class ByModel:
    """An admission for each model: agents of one that is slow do not hold up those of another."""

    def __init__(self, models: Mapping[str, str], make: Callable[[str], AdaptiveAdmission]) -> None:
        """`models` are those of the agents; `make` makes the admission of one."""
        made = {model: make(model) for model in dict.fromkeys(models.values())}
        self._admissions = {agent: made[model] for agent, model in models.items()}
        self._made = list(made.values())

    def room(self, agent: str) -> bool:
        return self._admissions[agent].room(agent)

    def enter(self, agent: str) -> None:
        self._admissions[agent].enter(agent)

    def leave(self, agent: str) -> None:
        self._admissions[agent].leave(agent)

    async def changed(self) -> None:
        if len(self._made) == 1:
            await self._made[0].changed()
            return
        waiting = [asyncio.ensure_future(admission.changed()) for admission in self._made]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()

    def present(self, agent: str, model: Model) -> AbstractContextManager[Model]:
        return self._admissions[agent].present(agent, model)
