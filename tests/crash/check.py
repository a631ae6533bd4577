"""What must be true of an output whatever happened to the run, told from its files alone.

The names are those of the promises: I1 every slot once, I2 nothing acknowledged is lost, I3 valid files, I4 little is
played again, I7 honest accounts, I9 the same as without the crash, I10 manners under pressure.
"""

from __future__ import annotations

import io
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import zstandard
from tests.crash.rows import identity
from tests.crash.script import Asked

FAILURES = "failures.ndjson"

Key = tuple[str, int, int]
"""A slot: the task's hash, which of equal rows, which repeat."""


class Found(NamedTuple):
    """What an output and its folder hold."""

    rewarded: list[dict[str, Any]]
    attempts: list[dict[str, Any]]
    """The lines of the log of failures."""
    faults: list[str]
    """Lines that are none."""

    @property
    def finals(self) -> list[dict[str, Any]]:
        return [attempt for attempt in self.attempts if attempt["final"]]

    @property
    def ended(self) -> int:
        """Slots that have ended: with a reward, or for good without one."""
        return len(
            {_key(row["rollmill"]["slot"]) for row in self.rewarded} | {_key(one["slot"]) for one in self.finals}
        )


def run_folder(output: Path) -> Path:
    return output.with_name(output.name.removesuffix(".zst").removesuffix(".jsonl") + ".run")


def content_of(path: Path) -> bytes:
    """What a file says, decompressed as far as that goes: a kill may have torn the last frame."""
    if not path.exists():
        return b""
    if not path.name.endswith(".zst"):
        return path.read_bytes()
    content, rest = b"", path.read_bytes()
    while rest:
        frame = zstandard.ZstdDecompressor().decompressobj()
        content += frame.decompress(rest)
        if not frame.eof:
            return content + b"a torn frame"
        rest = frame.unused_data
    return content


def look(output: Path, *, finished: bool = True) -> Found:
    """Read an output strictly; where its run was killed a moment ago, a torn last line is no fault."""
    faults: list[str] = []
    folder = run_folder(output)
    rewarded = list(_objects(output, faults, torn_end=not finished))
    attempts = list(_objects(folder / FAILURES, faults, torn_end=True, torn_middle=True))
    return Found(rewarded, attempts, faults)


def violations(
    output: Path,
    rows: Sequence[dict[str, Any]],
    repeats: int = 1,
    *,
    finished: bool = True,
    honest_model: bool = True,
    retried: bool = False,
) -> list[str]:
    """Every promise that an output breaks, in a sentence each.

    `finished`: the run reported that all is done. `honest_model`: it never gave a wrong answer. `retried`: slots that
    had failed for good were played again, so that a reward may stand beside the failure.
    """
    found = look(output, finished=finished)
    planned = _planned(rows, repeats)
    return [
        *found.faults,
        *_slots(found, planned, finished=finished, retried=retried),
        *_rewards(found.rewarded, planned, honest_model=honest_model),
        *_indices(found.rewarded, planned, repeats),
        *_failures(found.attempts),
        *_neighbours(output),
    ]


def check(output: Path, rows: Sequence[dict[str, Any]], repeats: int = 1, **options: bool) -> Found:
    """Raise `AssertionError` with everything that is wrong."""
    broken = violations(output, rows, repeats, **options)
    assert not broken, "\n".join([f"{len(broken)} promises broken:", *broken[:20]])
    return look(output, finished=options.get("finished", True))


# I1, I7: the slots.


def _planned(rows: Sequence[dict[str, Any]], repeats: int) -> dict[Key, dict[str, Any]]:
    planned: dict[Key, dict[str, Any]] = {}
    met: Counter[str] = Counter()
    for row in rows:
        task = identity(row)
        planned |= {(task, met[task], repeat): row for repeat in range(repeats)}
        met[task] += 1
    return planned


def _slots(found: Found, planned: Mapping[Key, Any], *, finished: bool, retried: bool) -> Iterator[str]:
    rewarded = Counter(_key(row["rollmill"]["slot"]) for row in found.rewarded)
    finals = Counter(_key(attempt["slot"]) for attempt in found.finals)
    ended = rewarded.keys() | finals.keys()
    yield from (f"I1: {count} rollouts of slot {key}" for key, count in rewarded.items() if count > 1)
    if not retried:
        yield from (f"I1: slot {key} failed for good {count} times" for key, count in finals.items() if count > 1)
        yield from (f"I1: slot {key} has a reward and failed for good" for key in rewarded.keys() & finals.keys())
    yield from (f"I1: nobody asked for slot {key}" for key in ended - planned.keys())
    if finished:
        yield from (f"I1: slot {key} is missing" for key in planned.keys() - ended)


# I9: every rollout is of its task, and has the reward that follows.


def _rewards(
    rewarded: Iterable[dict[str, Any]], planned: Mapping[Key, dict[str, Any]], *, honest_model: bool
) -> Iterator[str]:
    for row in rewarded:
        key = _key(row["rollmill"]["slot"])
        asked = planned.get(key)
        if asked is None:
            continue
        changed = [name for name in asked if name != "responses_create_params" and row.get(name) != asked[name]]
        if changed or row["responses_create_params"]["input"] != asked["responses_create_params"]["input"]:
            yield f"I9: the row of slot {key} is not that of its task: {changed or 'its input'}"
        right = row["response"]["output_text"] == f"{asked['number']}: {asked['secret']}"
        if honest_model and not right:
            yield f"I9: the answer in slot {key} is that of another task: {row['response']['output_text'][:80]!r}"
        reward = asked["worth"] if right else 0.0
        if row["reward"] != reward:
            yield f"I9: slot {key} earned {reward}, and is recorded with {row['reward']}"


def _indices(rewarded: Sequence[dict[str, Any]], planned: Mapping[Key, Any], repeats: int) -> Iterator[str]:
    """A group is all rollouts of one task: trainers find it by its index."""
    places = Counter((row["_ng_task_index"], row["_ng_rollout_index"]) for row in rewarded)
    yield from (f"I1: {count} rollouts at the indices {place}" for place, count in places.items() if count > 1)
    groups: defaultdict[int, set[str]] = defaultdict(set)
    indices: defaultdict[str, set[int]] = defaultdict(set)
    for row in rewarded:
        task = row["rollmill"]["slot"]["task"]
        groups[row["_ng_task_index"]].add(task)
        indices[task].add(row["_ng_task_index"])
    yield from (f"I1: the group {index} is of {len(tasks)} tasks" for index, tasks in groups.items() if len(tasks) > 1)
    yield from (f"I1: task {task} is in {len(of)} groups" for task, of in indices.items() if len(of) > 1)


# I7: failures.


def _failures(attempts: Sequence[dict[str, Any]]) -> Iterator[str]:
    for attempt in attempts:
        key, failure = _key(attempt["slot"]), attempt["failure"]
        if "reward" in attempt:
            yield f"I7: slot {key} failed, and has a reward"
        if not (failure["where"] and failure["kind"] and failure["detail"]):
            yield f"I7: the failure of slot {key} does not say what it was: {failure}"


# I3: files.


def _neighbours(output: Path) -> Iterator[str]:
    """Nothing but outputs matches `*.jsonl` beside an output, nor anything below it."""
    for path in run_folder(output).rglob("*.jsonl*"):
        yield f"I3: scripts that glob would take {path} for rollouts"


def _objects(path: Path, faults: list[str], *, torn_end: bool, torn_middle: bool = False) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(io.BytesIO(content_of(path)), 1):
        last = not line.endswith(b"\n")
        try:
            if last and not torn_end:
                raise ValueError("no line break at its end")
            content = json.loads(line, parse_constant=_refuse_constant)
            # What has no UTF-8 is no JSON to most readers.
            json.dumps(content, ensure_ascii=False).encode()
        except ValueError as error:
            if not (torn_middle or (last and torn_end)):
                faults.append(f"I3: {path.name}, line {number}: {error}: {line[:60]!r}")
            continue
        if not (last and torn_end):
            yield content


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _key(slot: Mapping[str, Any]) -> Key:
    return slot["task"], slot["occurrence"], slot["repeat"]


# What takes more than the files of one moment.


def check_kept(before: Sequence[bytes], after: Sequence[bytes]) -> None:
    """I2: whatever was in the file when the run was killed is there after it has gone on."""
    lost = Counter(before) - Counter(after)
    assert not lost, f"I2: {lost.total()} rollouts are gone, for example {next(iter(lost))[:200]!r}"


def check_same(found: Found, undisturbed: Found) -> None:
    """I9: the slots, inputs, seeds, indices, answers and rewards of a run that nobody disturbed."""
    ours, theirs = (dict(_substance(one)) for one in (found, undisturbed))
    other = [key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)]
    assert not other, f"I9: {len(other)} slots are others without a crash, for example {other[0]}: " + " against ".join(
        repr(one.get(other[0]))[:500] for one in (ours, theirs)
    )


def _substance(found: Found) -> Iterator[tuple[Key, dict[str, Any]]]:
    """A rollout without what every run has of its own: its name, its times, the model's name for the answer."""
    for row in found.rewarded:
        own = {name: value for name, value in row.items() if name not in ("rollmill", "response")}
        yield _key(row["rollmill"]["slot"]), own | {"answer": row["response"]["output_text"]}


def check_rework(asked: Sequence[Asked], found: Found, allowed: int, turns: int = 2) -> int:
    """I4: how many last answers were given that no rollout holds."""
    answers = sum(one.answered and one.turn == turns - 1 for one in asked)
    again = answers - len(found.rewarded)
    assert again <= allowed, f"I4: {again} rollouts were played again, and {allowed} may be"
    return again


def retries_for_each_answer(asked: Sequence[Asked], found: Found) -> float:
    """I10: every faulty answer is followed by a retry, but for those that ended a slot."""
    answered = sum(one.answered for one in asked)
    return (len(asked) - answered - len(found.finals)) / max(1, answered)


def check_waits(asked: Iterable[Asked]) -> int:
    """I10: nobody who was asked to wait came back before; how many did wait. For inputs without equal requests."""
    until: dict[str, float] = {}
    waited = 0
    for one in sorted(asked, key=lambda one: one.at):
        if one.key in until:
            early = until.pop(one.key) - one.at
            assert early <= 0, f"I10: errand {one.number} came back {early:.3f} s before Retry-After"
            waited += 1
        if one.wait:
            until[one.key] = one.at + one.wait
    return waited


def check_metrics(found: Found, metrics: Mapping[str, Any]) -> None:
    """I7: the mean that the run reports is that of the rewarded rollouts, and of nothing else."""
    mean = math.fsum(row["reward"] for row in found.rewarded) / len(found.rewarded)
    said, over = metrics["mean"]["reward"], metrics["over"]["reward"]
    assert over == len(found.rewarded), f"I7: the mean is over {over}, and {len(found.rewarded)} were rewarded"
    assert math.isclose(said, mean, abs_tol=1e-5), f"I7: reported {said}, and it is {mean}"
