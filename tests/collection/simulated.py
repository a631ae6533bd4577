"""Time that passes only while everybody waits, and model servers that live in it."""

import asyncio
import selectors
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import rollmill as rm
from rollmill.errors import ModelError


class _Selector(selectors.DefaultSelector):
    """Does not wait: it says that the time has passed."""

    passed = 0.0

    def select(self, timeout=None):
        if timeout is None:
            raise AssertionError("everybody waits, and nothing will ever happen")
        self.passed += timeout
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.simulated = _Selector()
        super().__init__(self.simulated)

    def time(self) -> float:
        return self.simulated.passed


def simulate(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run to the end, hours in moments."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(main())


def clock() -> float:
    return asyncio.get_running_loop().time()


class Server:
    """A model that counts what it is asked, and answers after its latency."""

    name = "simulated"

    def __init__(self, latency_s: float = 1.0, *, tokens: int = 0) -> None:
        self.latency_s = latency_s
        self.in_flight = self.most = 0
        self.asked: list[float] = []
        self.ended: Counter[str] = Counter()
        self._reply = rm.Reply((rm.assistant("yes"),), rm.Usage(tokens, 0))

    async def reply(self, conversation):
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        self.asked.append(clock())
        try:
            await self._serve()
        except ModelError as error:
            self.ended[error.failure.kind] += 1
            raise
        finally:
            self.in_flight -= 1
        self.ended["answered"] += 1
        return self._reply

    async def _serve(self) -> None:
        await asyncio.sleep(self.latency_s)


class Refusing(Server):
    """Serves so many at once, and refuses the others at once."""

    def __init__(self, capacity: int, latency_s: float = 1.0, *, kind="rate_limit", **options) -> None:
        super().__init__(latency_s, **options)
        self.capacity, self.kind = capacity, kind

    async def _serve(self) -> None:
        if self.in_flight > self.capacity:
            await asyncio.sleep(0.01)
            raise ModelError(self.kind, "too many")
        await super()._serve()


class Queueing(Server):
    """Serves so many at once, and lets the others wait."""

    def __init__(self, capacity: int, latency_s: float = 1.0) -> None:
        super().__init__(latency_s)
        self._seats = asyncio.Semaphore(capacity)

    async def _serve(self) -> None:
        async with self._seats:
            await super()._serve()


class Failing(Server):
    """Fails as a function of the time and of the number of the call says."""

    def __init__(self, fault: Callable[[float, int], ModelError | None], latency_s: float = 0.1) -> None:
        super().__init__(latency_s)
        self._fault = fault

    async def _serve(self) -> None:
        if (error := self._fault(clock(), len(self.asked))) is not None:
            await asyncio.sleep(0.01)
            raise error
        await super()._serve()
