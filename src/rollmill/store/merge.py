"""Several outputs made one: every slot once, groups whole, and each row says where it came from.

What stands for a slot, and which tasks are a group, is decided in `choice`. The merged output has a folder beside it
like any other, so that it can be shown, counted, and gone on with. A row keeps the run that played it, `rollmill.run`,
and gets one more entry in `rollmill.merged`: the file that it stood in and the indices that it had there. `merged.json`
in the folder says what became of each input.
"""

from __future__ import annotations

import itertools
import sqlite3
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from rollmill.errors import ConfigError, StoreError
from rollmill.files import write_whole
from rollmill.store.agreement import join_manifests, refuse_models
from rollmill.store.choice import Choice, Chosen, Offer, Rank
from rollmill.store.failures import Logged, read_failures
from rollmill.store.folder import ENDINGS, run_folder
from rollmill.store.lines import Broken, Line, Place, read_lines
from rollmill.store.manifest import NAME as MANIFEST
from rollmill.store.manifest import Manifest, read_manifest
from rollmill.store.schema import UNREADABLE, Entry, is_json, read_summary, stored_entry
from rollmill.store.store import Store
from rollmill.store.workplace import Workplace
from rollmill.types import Slot, decode, encode

NAME = "merged.json"
_BATCH = 1000
_MOST_PLACES = 20


class Joined(Struct):
    """What became of one of the outputs that were merged."""

    file: str
    kept: int = 0
    """Rollouts that stand in the merged output."""
    doubled: int = 0
    """Rollouts that were left out, because another one stands for their slot."""
    failed: int = 0
    """Slots that failed for good here, and that no input rewarded."""
    torn: int = 0
    foreign: int = 0
    """Lines of another origin."""
    garbage: int = 0
    places: list[str] = field(default_factory=list)
    """Where lines were that are torn, foreign or garbage: the first of them."""

    def skip(self, kind: str, place: str) -> None:
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.places) < _MOST_PLACES:
            self.places.append(f"{place}: {kind}")

    def count(self, rank: Rank, by: int) -> None:
        """An offer of this rank stands, or does so no longer."""
        if rank is Rank.FAILED:
            self.failed += by
        else:
            self.kept += by


class Merged(Struct, frozen=True):
    """A merged output: what `merged.json` says."""

    rollouts: int
    groups: int
    failed: int
    occurrences: bool
    mixed: bool
    inputs: list[Joined]


class Origin(Struct, frozen=True):
    """What a merged row was before: an entry of `rollmill.merged`, the oldest first."""

    file: str
    task_index: int
    rollout_index: int
    occurrence: int


def merge(out: Path, files: Sequence[Path], *, occurrences: bool = False, mixed: bool = False) -> Merged:
    """Join outputs by slot into a new one, which is there whole or not at all.

    What several inputs have for one slot is the same planned work: the first rollout with a reward stands, the others
    are doubles. With `occurrences` they are further occurrences of the task instead. Inputs of different experiments
    are refused unless `mixed`.
    """
    _refuse(out, files)
    inputs = [_Input(path) for path in files]
    manifests = {str(one.path): known for one in inputs if (known := read_manifest(one.folder)) is not None}
    manifest = join_manifests(manifests, mixed=mixed)
    with (
        _faults_named(out),
        Workplace(out) as workplace,
        closing(Choice(workplace.scratch, occurrences=occurrences)) as choice,
    ):
        _choose(inputs, choice)
        if not any(one.joined.kept or one.joined.failed for one in inputs):
            raise ConfigError(f"there is no rollout in {', '.join(str(path) for path in files)}")
        if not mixed:
            refuse_models({str(one.path): one.models for one in inputs if str(one.path) not in manifests}, manifest)
        groups = _write(workplace.rows, inputs, choice.chosen(), manifest)
        merged = Merged(
            rollouts=sum(one.joined.kept for one in inputs),
            groups=groups,
            failed=sum(one.joined.failed for one in inputs),
            occurrences=occurrences,
            mixed=mixed,
            inputs=[one.joined for one in inputs],
        )
        write_whole(run_folder(workplace.rows) / NAME, _pretty(merged))
        workplace.hand_over()
    return merged


def _refuse(out: Path, files: Sequence[Path]) -> None:
    """Raise `ConfigError` where merging would write over something, or has nothing to read."""
    if not out.name.endswith(ENDINGS):
        raise ConfigError(f"{out}: the name of an output ends in .jsonl or .jsonl.zst")
    for number, path in enumerate(files):
        if not path.is_file() and not (run_folder(path).is_dir() and not path.exists()):
            raise ConfigError(f"{path}: there is no such output")
        if run_folder(path).resolve() == run_folder(out).resolve():
            raise ConfigError(f"{out} is one of the inputs, or shares its folder: give the merged output another name")
        if path.resolve() in (other.resolve() for other in files[:number]):
            raise ConfigError(f"{path} is given twice")
    if out.exists():
        raise ConfigError(f"{out} exists: move it away, or give the merged output another name")


@contextmanager
def _faults_named(out: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(f"{out} was not made: the scratch database beside it: {error}") from error
    except OSError as error:
        raise StoreError(f"{out} was not made: {error.filename or out}: {error.strerror}") from error


# Reading.


class _Input:
    """One of the outputs. Its lines, then those of its log of failures, are numbered with those of all others."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = run_folder(path)
        self.joined = Joined(str(path))
        self.models: dict[str, list[str]] = {}
        self.first = self.lines = self.failures = 0

    def offers(self) -> Iterator[tuple[int, Offer]]:
        """Everything that it has for slots, numbered."""
        for line in self._read():
            self.lines += 1
            offer = self._offer(line)
            if offer is not None:
                yield self.first + self.lines - 1, offer
        for _, logged in read_failures(self.folder):
            self.failures += 1
            if logged.final:
                yield self.end - 1, Offer(logged.slot, logged.run, Rank.FAILED)

    @property
    def end(self) -> int:
        return self.first + self.lines + self.failures

    def again(self) -> Iterator[tuple[int, Line | Broken | Logged]]:
        """What was read before, and nothing that was added since."""
        logged = (one for _, one in read_failures(self.folder))
        lines = itertools.islice(self._read(), self.lines)
        return enumerate(itertools.chain(lines, itertools.islice(logged, self.failures)), self.first)

    def _read(self) -> Iterator[Line | Broken]:
        # Where every slot failed there is no output, only its folder.
        return read_lines(self.path) if self.path.exists() else iter(())

    def _offer(self, line: Line | Broken) -> Offer | None:
        if isinstance(line, Broken):
            self.joined.skip("torn" if line.last else "garbage", f"byte {line.start}")
            return None
        content = line.content
        if not content.strip():
            return None
        try:
            summary = read_summary(content)
        except UNREADABLE:
            kind = "foreign" if is_json(content) else "garbage" if line.whole else "torn"
            self.joined.skip(kind, f"line {self.lines}")
            return None
        self._note_model(summary.rollmill.slot.agent, summary.rollmill.model)
        rank = Rank.UNVERIFIED if summary.verification_skipped else Rank.REWARDED
        return Offer(summary.slot, summary.rollmill.run, rank)

    def _note_model(self, agent: str, model: str) -> None:
        models = self.models.setdefault(agent, [])
        if model not in models:
            models.append(model)


def _choose(inputs: Sequence[_Input], choice: Choice) -> None:
    """Read every input once, and settle what stands for each slot."""
    firsts: list[int] = []
    for one in inputs:
        one.first = sum(before.lines + before.failures for before in inputs[: len(firsts)])
        firsts.append(one.first)
        for number, offer in one.offers():
            one.joined.count(offer.rank, 1)
            lost = choice.offer(number, offer)
            if lost is None:
                continue
            loser = inputs[bisect_right(firsts, lost.number) - 1].joined
            loser.count(lost.rank, -1)
            loser.doubled += lost.rank is not Rank.FAILED
        choice.end_source()


# Writing.


def _write(rows: Path, inputs: Sequence[_Input], chosen: Iterator[Chosen], manifest: Manifest | None) -> int:
    """The merged output with its log of failures, its index and its manifest; how many groups it has."""
    rows.touch()
    groups = 0
    with Store(rows) as store:
        store.open()
        if manifest is not None:
            write_whole(store.folder / MANIFEST, _pretty(manifest))
        pairs = _chosen_pairs(inputs, chosen)
        while batch := list(itertools.islice(pairs, _BATCH)):
            kept = [_append(store, one, item, slot) for one, item, slot in batch]
            store.journal.commit()
            store.keep(kept)
            groups = max(groups, 1 + max(entry.slot.task_index for entry, _ in kept))
    return groups


def _chosen_pairs(inputs: Sequence[_Input], chosen: Iterator[Chosen]) -> Iterator[tuple[_Input, Line | Logged, Slot]]:
    """What was chosen, read again, each with the slot it has now."""
    following = next(chosen, None)
    for one in inputs:
        for number, item in one.again():
            if following is None or number != following.number:
                continue
            if isinstance(item, Broken):
                raise _changed(one)
            yield one, item, following.slot
            following = next(chosen, None)
        if following is not None and following.number < one.end:
            raise _changed(one)


def _append(store: Store, one: _Input, item: Line | Logged, slot: Slot) -> tuple[Entry, Place]:
    if isinstance(item, Logged):
        _check_same(one, item.slot, slot)
        logged = replace(item, slot=slot)
        return logged.entry(), store.failures.copy(logged)
    row = item.content
    try:
        entry = stored_entry(row)
    except UNREADABLE:
        raise _changed(one) from None
    _check_same(one, entry.slot, slot)
    return replace(entry, slot=slot), store.journal.append(_renumbered(row, entry.slot, slot, str(one.path)))


def _renumbered(row: bytes, was: Slot, now: Slot, file: str) -> bytes:
    """The row with other indices; every other field keeps its bytes."""
    fields = decode(row, type=dict[str, Raw])
    block = decode(fields["rollmill"], type=dict[str, Raw])
    origins = decode(block["merged"], type=list[Raw]) if "merged" in block else []
    origin = Origin(file, was.task_index, was.rollout_index, was.occurrence)
    block["merged"] = Raw(encode([*origins, origin]))
    if now.occurrence != was.occurrence:
        key = decode(block["slot"], type=dict[str, Raw]) | {"occurrence": Raw(encode(now.occurrence))}
        block["slot"] = Raw(encode(key))
    fields["_ng_task_index"] = Raw(encode(now.task_index))
    fields["_ng_rollout_index"] = Raw(encode(now.rollout_index))
    fields["rollmill"] = Raw(encode(block))
    return encode(fields)


def _check_same(one: _Input, was: Slot, now: Slot) -> None:
    if (was.agent, was.task, was.repeat) != (now.agent, now.task, now.repeat):
        raise _changed(one)


def _changed(one: _Input) -> StoreError:
    return StoreError(f"{one.path} was changed while it was read: merge again when nobody writes to it")


def _pretty(record: Struct) -> bytes:
    return msgspec.json.format(encode(record), indent=2) + b"\n"
