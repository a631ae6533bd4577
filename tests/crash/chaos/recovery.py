"""Kills while a spoiled output is mended, and while that is gone on with."""

from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import zstandard
from tests.crash.chaos.small import CONCURRENCY, OUTPUTS, SCRIPT, Small
from tests.crash.chaos.trial import Attempt, Outcome, Outcomes, Place, Trial, recovered
from tests.crash.check import check, check_kept, check_rework
from tests.crash.preload import Operation
from tests.crash.served import served

ASSERTED = """\
Half of a collection is played; then its output gets a line of garbage, one of NUL bytes and a row a second time in
the middle, and half a line at its end (a compressed output, a frame whose bytes have turned, and half a frame); and
its index is left, or taken away. The run that mends it is killed at every operation on the disk until it plays (a
compressed output and one without index, at every third), by chance before it or in its middle, and the runs after it
four times more at operations that are drawn. After each kill every good row is in the file (I2), and nothing that had
not been there but rollouts; at the end I1, I3, I4 and I9 hold, and what was moved out of the output is in the
quarantine to the last byte."""
PART = "recovery"
FRAME = b"\x28\xb5\x2f\xfd"
DEPTH = 5
STEP = 3
HALF = 6
GARBAGE = b"no JSON at all\n"
NULS = b"\0" * 4096 + b"\n"
TORN = b'{"responses_create_params": {"input": "half a li'


class Spoiled:
    """An output that is half done and wholly spoiled, to be copied."""

    def __init__(self, small: Small, *, index: bool) -> None:
        self.folder = small.disk.folder
        small.collect.finish("--limit", str(HALF))
        self.good = small.collect.lines()
        self.removed = _spoil(small.collect.output)
        if not index:
            for path in small.collect.run_folder.glob("index.sqlite*"):
                path.unlink()
        self.operations: list[Operation] = []

    def lay(self, small: Small) -> None:
        shutil.rmtree(small.disk.folder, ignore_errors=True)
        shutil.copytree(self.folder, small.disk.folder)


def recovery(trial: Trial) -> tuple[Outcomes, list[str]]:
    attempts: dict[str, Attempt] = {}
    notes = []
    for output, index in itertools.product(OUTPUTS, (True, False)):
        kind = f"{output} {'with' if index else 'without'} index"
        spoiled = _traced(trial, output, index=index)
        numbers = _of_mending(spoiled.operations, output)
        notes.append(f"{kind}: {len(numbers)} operations until it plays")
        every = 1 if (output, index) == (OUTPUTS[0], True) else STEP
        for number in trial.some(numbers[::every]):
            attempts[f"{kind} {number}"] = partial(attempt, output=output, spoiled=spoiled, number=number)
    outcomes = trial.play(PART, attempts, **SCRIPT)
    return outcomes, [*notes, f"{sum(outcomes.measured('kills')):,.0f} kills, {DEPTH} deep"]


def attempt(place: Place, *, output: str, spoiled: Spoiled, number: int) -> Outcome:
    small = Small(place.folder, place.server.url, output)
    collect = small.collect
    spoiled.lay(small)
    numbers, kills, held = [], 0, spoiled.good
    for _ in range(DEPTH):
        half = place.chance.random() < 0.5
        numbers.append(f"{number}{' half' if half else ''}")
        ended = collect.run(env=small.disk.kills_at(number, half=half))
        assert ended.code in (-9, 0), f"killed at {numbers}: {ended.err}"
        kills += ended.code == -9
        try:
            check_good(held, good_lines(collect.output))
        except AssertionError as error:
            raise AssertionError(f"killed at {numbers}: {error}") from error
        held = good_lines(collect.output)
        if ended.code == 0:
            break
        number = place.chance.randrange(1, len(spoiled.operations))
    collect.finish()
    found = check(collect.output, small.rows)
    check_kept(spoiled.good, collect.lines())
    check_quarantine(collect.run_folder / "quarantine.ndjson", spoiled.removed)
    asked = place.asked
    # Half of it was played before.
    again = check_rework(asked, found, allowed=kills * CONCURRENCY - HALF, turns=1) + HALF
    return Outcome(again, recovered(asked, collect.started[-1]), {"kills": kills})


def _traced(trial: Trial, output: str, *, index: bool) -> Spoiled:
    """The spoiled output, and what mending it and going on asks of the disk."""
    folder = trial.scratch(PART, f"spoiled-{output}-{index}")
    with served(folder, **SCRIPT) as server:
        small = Small(folder, server.url, output)
        spoiled = Spoiled(small, index=index)
        spoiled.folder = small.disk.folder.rename(folder / "spoiled")
        spoiled.lay(small)
        ended = small.collect.run(env=small.disk.traced())
    assert ended.code == 0, ended
    check(small.collect.output, small.rows)
    spoiled.operations = small.disk.operations()
    return spoiled


def _of_mending(operations: Sequence[Operation], output: str) -> list[int]:
    """Until the first rollout is in the file, that operation included."""
    played = next(one.number for one in operations if one.kind == "write" and one.path == output)
    return list(range(1, played + 1))


def _spoil(output: Path) -> list[bytes]:
    """What has to leave the output, in pieces."""
    if output.name.endswith(".zst"):
        return _spoil_frames(output)
    lines = output.read_bytes().splitlines(keepends=True)
    doubled = lines[1]
    output.write_bytes(b"".join([*lines[:2], GARBAGE, *lines[2:4], NULS, doubled, *lines[4:], TORN]))
    return [GARBAGE, NULS, doubled, TORN]


def _spoil_frames(output: Path) -> list[bytes]:
    """A row inside a frame cannot go alone, so that none is doubled here."""
    whole = output.read_bytes()
    frame = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(GARBAGE + TORN)
    middle = whole.find(FRAME, 1) if whole.count(FRAME) > 1 else 0
    turned = frame[:-4] + bytes(byte ^ 0xFF for byte in frame[-4:])
    torn = frame[: len(frame) // 2]
    output.write_bytes(whole[:middle] + turned + whole[middle:] + torn)
    return [turned, torn]


def good_lines(output: Path) -> list[bytes]:
    """The lines of an output that may be spoiled; of a compressed one, those in whole frames."""
    content = output.read_bytes()
    if output.name.endswith(".zst"):
        places = [one.start() for one in re.finditer(re.escape(FRAME), content)]
        content = b"".join(_frame(content[place:]) for place in places)
    *whole, _half = content.split(b"\n")
    return [line for line in whole if line.startswith(b"{")]


def _frame(content: bytes) -> bytes:
    frame = zstandard.ZstdDecompressor().decompressobj()
    with suppress(zstandard.ZstdError):
        whole = frame.decompress(content)
        return whole if frame.eof else b""
    return b""


def check_good(good: Sequence[bytes], there: Sequence[bytes]) -> None:
    lost = set(good) - set(there)
    assert not lost, f"I2: {len(lost)} good rows are gone, for example {next(iter(lost))[:200]!r}"


def check_quarantine(path: Path, removed: Sequence[bytes]) -> None:
    """Nothing is deleted. A kill may have torn one of its lines, which is there again."""
    kept = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        with suppress(ValueError):
            kept.append(json.loads(line))
    pieces = {one["text"].encode() if "text" in one else base64.b64decode(one["base64"]) for one in kept}
    lost = [piece[:80] for piece in removed if piece not in pieces]
    assert not lost, f"neither in the output nor in the quarantine: {lost}"
