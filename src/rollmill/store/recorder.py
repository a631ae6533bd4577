"""Group commit: many rollouts share one trip to the disk, and how safe a recorded rollout is has a name."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self

from msgspec import Raw

from rollmill.errors import StoreError
from rollmill.store.lines import Place
from rollmill.store.schema import Entry
from rollmill.store.store import Store

Durability = Literal["process", "os", "power"]

COMMIT_S = 0.2
COMMIT_ROLLOUTS = 256


class Recorder:
    """Records what has ended. What `record` returned from survives the death of this process.

    `process`: the disk is asked once, at the end. `os`: five times a second, so that a crash of the machine costs the
    last moment. `power`: `record` returns only when the rollout is on the disk.
    """

    def __init__(self, store: Store, durability: Durability = "os") -> None:
        self._store = store
        self._durability = durability
        self._pending: list[tuple[Entry, Place]] = []
        self._wake = asyncio.Event()
        self._full = asyncio.Event()
        self._waits = durability == "power" or store.journal.at_commit
        self._group: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._committing: asyncio.Task[None] | None = None
        self._syncing: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        self._committing = asyncio.create_task(self._commit_groups(), name="commits")
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._committing is not None:
            self._committing.cancel()
            await asyncio.wait([self._committing, *([self._syncing] if self._syncing else [])])
        self.commit()
        _settle(self._group)

    async def rewarded(self, entry: Entry, row: bytes) -> None:
        await self._keep(entry, self._store.journal.append(row))

    async def failed(self, entry: Entry, response: Raw, *, final: bool) -> None:
        """Log an attempt that failed; `final` if none follows."""
        place = self._store.failures.append(entry, response, final=final)
        if final:
            await self._keep(entry, place)

    def commit(self) -> None:
        """Everything that was recorded is in the files and in the index."""
        self._store.journal.commit()
        batch, self._pending = self._pending, []
        if batch:
            self._store.keep(batch)

    async def _keep(self, entry: Entry, place: Place) -> None:
        if self._committing is not None and self._committing.done():
            # It ends early only with what stopped it.
            self._committing.result()
        self._pending.append((entry, place))
        self._wake.set()
        if len(self._pending) >= COMMIT_ROLLOUTS:
            self._full.set()
        if self._waits:
            await asyncio.shield(self._group)

    async def _commit_groups(self) -> None:
        group = self._group
        try:
            while True:
                await self._wake.wait()
                with suppress(TimeoutError):
                    async with asyncio.timeout(COMMIT_S):
                        await self._full.wait()
                self._wake.clear()
                self._full.clear()
                group, self._group = self._group, asyncio.get_running_loop().create_future()
                self.commit()
                await self._synced()
                _settle(group)
        except StoreError as error:
            _settle(group, error)
            _settle(self._group, error)
            raise

    async def _synced(self) -> None:
        if self._durability == "process":
            return
        self._syncing = asyncio.ensure_future(asyncio.to_thread(self._sync))
        # The thread goes on when this task is cancelled, and must not find the files closed.
        await asyncio.shield(self._syncing)

    def _sync(self) -> None:
        self._store.journal.sync()
        self._store.failures.sync()


def _settle(group: asyncio.Future[None], error: StoreError | None = None) -> None:
    if group.done():
        return
    if error is None:
        group.set_result(None)
    else:
        group.set_exception(error)
        # Nobody may be waiting for it.
        group.exception()
