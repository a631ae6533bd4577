"""The last record cut off at every byte."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.crash.chaos.small import OUTPUTS, SCRIPT, Small
from tests.crash.chaos.trial import Attempt, Outcome, Outcomes, Place, Trial, recovered
from tests.crash.check import check, content_of
from tests.crash.rows import identity
from tests.crash.served import served

from rollmill.store.ledger import Ledger, Wanted
from rollmill.store.store import Store

ASSERTED = """\
The output of a finished collection is cut off at every byte of its last line (in a compressed one, of its last
frame), with its index and without. Each of these is opened in this process as the command opens it: what was before
the cut is in the file byte by byte and held, the half is gone, and exactly the slots of what was cut are owed; a line
that lacks nothing but its line break is whole (I1, I3). A sample of the cuts is gone on with by the command, which
plays just those slots."""
PART = "torn"
SAMPLE = 40


class Whole:
    """A finished output, to be copied."""

    def __init__(self, folder: Path, output: str, agent: str, rows: Sequence[dict[str, Any]]) -> None:
        self.folder, self.output, self.agent, self.rows = folder, output, agent, rows
        self.content = (folder / output).read_bytes()
        self.last = self._last()
        before = folder / f"before-{output}"
        before.write_bytes(self.content[: self.last])
        self.before = {json.loads(line)["number"] for line in content_of(before).splitlines()}
        before.unlink()

    def _last(self) -> int:
        """Where its last line or frame begins."""
        if self.output.endswith(".zst"):
            return self.content.rfind(b"\x28\xb5\x2f\xfd")
        return self.content[:-1].rfind(b"\n") + 1

    def cut(self, folder: Path, size: int, *, index: bool) -> Path:
        """A copy that ends there."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder)
        output = folder / self.output
        output.write_bytes(self.content[:size])
        if not index:
            for path in folder.glob("out.run/index.sqlite*"):
                path.unlink()
        return output


def torn(trial: Trial) -> tuple[Outcomes, list[str]]:
    wholes = {output: _whole(trial, output) for output in OUTPUTS}
    attempts: dict[str, Attempt] = {}
    notes = []
    for output, whole in wholes.items():
        sizes = range(whole.last, len(whole.content))
        notes.append(f"{output}: {len(sizes):,} bytes")
        for index in (True, False):
            for size in trial.some(sizes):
                name = f"{output} {size} {'with' if index else 'without'} index"
                attempts[name] = partial(opened, whole=whole, size=size, index=index)
        count = trial.count(SAMPLE)
        for size in sizes[:: -(-len(sizes) // count)]:
            attempts[f"{output} {size} by the command"] = partial(gone_on, whole=whole, size=size)
    return trial.play(PART, attempts, **SCRIPT), notes


def opened(place: Place, *, whole: Whole, size: int, index: bool) -> Outcome:
    output = whole.cut(place.folder / "disk", size, index=index)
    held = held_of(whole, size)
    with Store(output) as store:
        store.open()
        kept = output.read_bytes()
        owed = _owed(store, whole)
    assert kept == whole.content[: _kept(whole, size)], f"{len(kept)} bytes of {size} are left"
    assert owed == _numbers(whole) - held, f"owed are {sorted(owed)}, and held were {sorted(held)}"
    return Outcome()


def gone_on(place: Place, *, whole: Whole, size: int) -> Outcome:
    small = Small(place.folder, place.server.url, whole.output)
    whole.cut(small.disk.folder, size, index=True)
    small.collect.finish()
    check(small.collect.output, small.rows)
    asked = place.asked
    missing = sorted(_numbers(whole) - held_of(whole, size))
    assert sorted(one.number for one in asked) == missing, f"played {[one.number for one in asked]} for {missing}"
    return Outcome(0, recovered(asked, small.collect.started[-1]))


def held_of(whole: Whole, size: int) -> set[int]:
    """The errands that are whole before a cut."""
    return whole.before if _kept(whole, size) == whole.last else _numbers(whole)


def _kept(whole: Whole, size: int) -> int:
    """How much of what is there is whole: of a frame, all or nothing."""
    lacks = len(whole.content) - size
    whole_line = not whole.output.endswith(".zst") and lacks == 1
    return size if whole_line else whole.last


def _numbers(whole: Whole) -> set[int]:
    return {row["number"] for row in whole.rows}


def _owed(store: Store, whole: Whole) -> set[int]:
    numbers = {identity(row): row["number"] for row in whole.rows}
    wanted = [Wanted(whole.agent, bytes.fromhex(one)) for one in numbers]
    found, _ = Ledger(store.index).plan(wanted, lambda _: 1)
    return {numbers[slot.task] for one in found for slot in one.slots}


def _whole(trial: Trial, output: str) -> Whole:
    folder = trial.scratch(PART, f"whole-{output}")
    with served(folder, **SCRIPT) as server:
        small = Small(folder, server.url, output)
        small.collect.finish()
    found = check(small.collect.output, small.rows)
    return Whole(small.disk.folder, output, found.rewarded[0]["rollmill"]["slot"]["agent"], small.rows)
