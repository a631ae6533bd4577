"""Group commit: many rollouts share one trip to the disk, and how safe a recorded rollout is has a name."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import perf_counter
from types import TracebackType
from typing import Literal, Self

from msgspec import Raw

from rollmill.errors import StoreError, describe
from rollmill.store.lines import Place
from rollmill.store.schema import Entry
from rollmill.store.store import Store
from rollmill.types import Spans

Durability = Literal["process", "os", "power"]

COMMIT_S = 0.2
COMMIT_ROLLOUTS = 256
_FRAME_S = 0.05
"""How long rollouts wait for others to be compressed with them."""


class Recorder:
    """Records what has ended. What `rewarded` or `failed` returned from survives the death of this process.

    It does from the next turn of the event loop on: rows that come in one turn are handed over together at its end,
    before anybody else can hear of them.

    `process`: the disk is asked once, at the end. `os`: five times a second, so that a crash of the machine costs the
    last moment. `power`: they return only when the slot is on the disk.

    After an error nothing more is recorded: everybody who waits hears of it, and so do those who come next and the one
    who leaves.
    """

    def __init__(self, store: Store, durability: Durability = "os", spans: Spans | None = None) -> None:
        """`spans` hears how long groups took: to be indexed, while nothing else happens, and to be on the disk."""
        self._store = store
        self._spans = spans
        self._durability = durability
        self._pending: list[tuple[Entry, Place]] = []
        self._wake = asyncio.Event()
        self._full = asyncio.Event()
        self._leaving = False
        self._waits = durability == "power" or store.journal.at_commit
        # Where everybody waits for a commit, one begins as soon as the last has ended, or little is ever done at once.
        self._patience_s = _FRAME_S if store.journal.at_commit else 0.0 if self._waits else COMMIT_S
        self._loop = asyncio.get_running_loop()
        self._handing_over = False
        self._group: asyncio.Future[None] = self._loop.create_future()
        self._broken: asyncio.Future[None] = self._loop.create_future()
        self._committing: asyncio.Task[None] | None = None
        self._error: StoreError | None = None

    async def __aenter__(self) -> Self:
        self._committing = asyncio.create_task(self._commit_groups(), name="commits")
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        self._leaving = True
        self._wake.set()
        self._full.set()
        if self._committing is not None:
            await _outlasted(self._committing)
        if self._error is not None and error is not self._error:
            raise self._error

    async def rewarded(self, entry: Entry, row: bytes) -> None:
        self._refuse()
        try:
            place = self._store.journal.append(row)
        except StoreError as error:
            raise self._fail(error) from None
        self._keep(entry, place)
        if not self._handing_over:
            self._handing_over = True
            self._loop.call_soon(self._hand_over)
        if self._waits:
            await self._committed()

    async def failed(self, entry: Entry, response: Raw, *, final: bool, task: Raw = Raw(b"null")) -> None:
        """Log an attempt that failed; `final` if none follows, and then with the row of its `task`."""
        self._refuse()
        place = self._store.failures.append(entry, response, final=final, task=task)
        if final:
            self._keep(entry, place)
            if self._waits:
                await self._committed()

    @property
    def broken(self) -> bool:
        """Whether there was an error: nothing is recorded any more."""
        return self._error is not None

    async def until_broken(self) -> None:
        """Wait for the error, and raise it."""
        await asyncio.shield(self._broken)

    def commit(self) -> None:
        """Everything that was recorded is in the files and in the index."""
        if self._error is not None:
            raise self._error
        batch, self._pending = self._pending, []
        try:
            self._store.journal.commit()
            if batch:
                self._store.keep(batch)
        except Exception as error:
            # The index must not get what the files have not; whoever opens them next finds out what they have.
            self._fail(error)
            raise

    def _refuse(self) -> None:
        """What was appended here would never be indexed."""
        if self._error is not None:
            raise self._error
        if self._committing is not None and self._committing.done():
            raise StoreError(f"{self._store.path}: nothing can be recorded any more: recording has ended")

    def _keep(self, entry: Entry, place: Place) -> None:
        self._pending.append((entry, place))
        self._wake.set()
        if len(self._pending) >= COMMIT_ROLLOUTS:
            self._full.set()

    def _hand_over(self) -> None:
        self._handing_over = False
        try:
            self._store.journal.hand_over()
        except StoreError as error:
            self._fail(error)

    async def _committed(self) -> None:
        # Whoever is cancelled here has recorded all the same.
        await asyncio.shield(self._group)

    async def _commit_groups(self) -> None:
        while True:
            await self._wake.wait()
            await self._others()
            try:
                await self._commit_group()
            except Exception:  # noqa: BLE001
                # It was told to all who wait, and is raised for those who come.
                return
            if self._leaving and not self._pending:
                return

    async def _others(self) -> None:
        """Let others join the group."""
        if self._patience_s:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience_s):
                    await self._full.wait()
        else:
            await asyncio.sleep(0)

    async def _commit_group(self) -> None:
        if not self._leaving:
            self._wake.clear()
            self._full.clear()
        group, self._group = self._group, self._loop.create_future()
        try:
            began = perf_counter()
            self.commit()
            committed = perf_counter()
            if self._durability != "process":
                await asyncio.to_thread(self._sync)
            if self._spans is not None:
                self._spans.add("store", committed - began, "commit")
                self._spans.add("store", perf_counter() - committed, "fsync")
        except BaseException as error:
            _settle(group, self._fail(error))
            raise
        _settle(group)

    def _sync(self) -> None:
        self._store.journal.sync()
        self._store.failures.sync()

    def _fail(self, error: BaseException) -> StoreError:
        if self._error is None:
            known = error if isinstance(error, StoreError) else None
            self._error = known or StoreError(f"{self._store.path}: cannot be recorded: {describe(error)}")
        _settle(self._group, self._error)
        _settle(self._broken, self._error)
        return self._error


async def _outlasted(task: asyncio.Task[None]) -> None:
    """Wait for it, also when this is cancelled: it uses files that will be closed."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def _settle(group: asyncio.Future[None], error: StoreError | None = None) -> None:
    if group.done():
        return
    if error is None:
        group.set_result(None)
    else:
        group.set_exception(error)
        # Nobody may be waiting for it.
        group.exception()
