"""The Python way in: rollouts as they end, from objects that the caller made."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from rollmill.agent import Agent
from rollmill.collection.calls import Calls, Persistent
from rollmill.collection.collector import Collector, Forgetful, Recorder
from rollmill.collection.limits import Places
from rollmill.collection.plan import Feed, Plan
from rollmill.collection.retry import RetryPolicy
from rollmill.collection.source import Given
from rollmill.config import masked
from rollmill.environment import World, opened
from rollmill.local import LocalWorker, Seat
from rollmill.model import Model, Sampling
from rollmill.rollout import Deadlines
from rollmill.store.index import Index
from rollmill.store.ledger import Ledger
from rollmill.store.manifest import Identities, Identity, new_run
from rollmill.store.recorder import Recorder as StoreRecorder
from rollmill.store.store import Store
from rollmill.types import Rollout, Task
from rollmill.verification.pool import RewardPool

PLACES = 64


async def collect(
    tasks: Iterable[Task],
    environment: World,
    agent: Agent,
    model: Model,
    *,
    repeats: int = 1,
    places: int | None = None,
    out: str | Path | None = None,
    sampling: Sampling | Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    models: Mapping[str, Model] | None = None,
    retry: RetryPolicy = RetryPolicy(),
    deadlines: Deadlines = Deadlines(),
) -> AsyncIterator[Rollout]:
    """Play tasks, `places` at once, and give each rollout when it ends.

    `config` and `models` are the environment's own: its settings, and for example a judge. With `out` rollouts are
    recorded too, and what that file holds already is not played again. Leaving the loop early stops the rest.
    """
    overrides = sampling.overrides() if isinstance(sampling, Sampling) else dict(sampling or {})
    name = type(agent).__name__
    identity = Identity(
        model.name,
        overrides,
        *_identity_of(environment),
        environment_config=masked(config or {}),
        other_models={name: model.name for name, model in (models or {}).items()},
    )
    places = places or getattr(model, "places", None) or PLACES
    ended: asyncio.Queue[Rollout | None] = asyncio.Queue(maxsize=places)
    async with AsyncExitStack() as stack:
        index, recorder, run = await _recording(stack, out, name, identity)
        if isinstance(model, AbstractAsyncContextManager):
            await stack.enter_async_context(model)
        calls = Calls(model.name, retry)
        world = await stack.enter_async_context(opened(environment, config, models))
        seat = Seat(world, agent, Persistent(model, calls))

        async def the_seat(_: str) -> Seat:
            return seat

        worker = LocalWorker(
            the_seat,
            await stack.enter_async_context(RewardPool()),
            run=run,
            admission=Places(places),
            calls=[calls],
            deadlines=deadlines,
            keep_rollouts=True,
        )
        plan = Plan(Given(name, tasks), Ledger(index), repeats=lambda _: repeats, overrides=overrides)
        collector = Collector(
            worker, Feed(plan), admission=worker.admission, recorder=recorder, deliver=ended.put, retry=retry
        )
        running = asyncio.create_task(_run_to_end(collector, ended))
        try:
            while (rollout := await ended.get()) is not None:
                yield rollout
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def _identity_of(world: World) -> tuple[str, str]:
    """The name and the version of what makes an environment."""
    kind = world.func if isinstance(world, functools.partial) else world
    return getattr(kind, "__name__", type(kind).__name__), getattr(kind, "version", "1")


async def _run_to_end(collector: Collector, ended: asyncio.Queue[Rollout | None]) -> None:
    try:
        await collector.run()
    except asyncio.CancelledError:
        # Whoever was reading has gone: a last word would wait for ever in a full queue.
        raise
    except BaseException:
        await ended.put(None)
        raise
    await ended.put(None)


async def _recording(
    stack: AsyncExitStack, out: str | Path | None, agent: str, identity: Identity
) -> tuple[Index, Recorder, str]:
    if out is None:
        return stack.enter_context(_scratch()), Forgetful(), ""
    import rollmill

    store = stack.enter_context(Store(Path(out)))
    known = Identities(store.folder)
    known.meet(agent, identity)
    store.open()
    run = known.begin(new_run(version=rollmill.__version__, command=[], durability="os", code={}, inputs=[]), config={})
    return store.index, await stack.enter_async_context(StoreRecorder(store)), run.id


@contextmanager
def _scratch() -> Iterator[Index]:
    index = Index(None)
    try:
        yield index
    finally:
        index.close()
