"""Files that others write while they are read; the clock is moved by hand."""

import asyncio
import gzip
import json
import os
import random
import threading
from collections import Counter
from pathlib import Path

import pytest
import zstandard
from tests.collection.parts import Clock, entry, hold

import rollmill as rm
from rollmill.collection.followed import LOOK_S, Followed
from rollmill.collection.listing import Named, Pattern
from rollmill.collection.plan import Plan
from rollmill.collection.source import Player, Reader
from rollmill.collection.watched import LINGER_S
from rollmill.store.index import Index
from rollmill.store.ledger import Ledger
from rollmill.types import decode

READER = Reader(lambda ref: Player(ref.name if ref else "agent", rm.Task))


def row(number: int) -> str:
    return json.dumps({"responses_create_params": {"input": f"task {number}"}, "n": number}) + "\n"


def rows(*numbers: int) -> str:
    return "".join(map(row, numbers))


def append(path: Path, text: str | bytes) -> None:
    with path.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


class Follower:
    """Follows what some listings name, and plans what comes."""

    def __init__(self, *listings, streams=(), limit=None) -> None:
        self.clock, self.said = Clock(), []
        self.source = Followed(listings, streams, READER, limit, say=self.said.append, clock=self.clock)
        self.index = Index(None)
        self.plan = Plan(self.source, Ledger(self.index))
        self._jobs = self.plan.stretches()
        self.asked: list[int] = []

    def look(self, after: float = LOOK_S) -> list[int]:
        """The numbers of the tasks that are asked for since the last time, in their order."""
        self.clock.now += after
        found = []
        while (jobs := next(self._jobs, None)) is not None:
            found += [decode(job.task.fields["n"]) for job in jobs]
        self.asked += found
        return found

    def settle(self) -> list[int]:
        """The same, when all that lingers has gone."""
        return [number for _ in range(6) for number in self.look()]

    def finish(self) -> list[int]:
        self.source.finish()
        found = [decode(job.task.fields["n"]) for jobs in self._jobs for job in jobs or ()]
        assert list(self._jobs) == []
        return found


@pytest.fixture
def follow():
    made = []

    def make(*listings, **options) -> Follower:
        made.append(Follower(*listings, **options))
        return made[-1]

    yield make
    for one in made:
        one._jobs.close()
        one.index.close()


# One file.


def test_rows_come_as_their_lines_are_whole(follow, tmp_path):
    path = tmp_path / "a.jsonl"
    append(path, rows(1, 2))
    one = follow(Named(path))
    assert one.look() == [1, 2]
    assert one.look() == []
    append(path, row(3) + row(4)[:30])
    assert one.look() == [3]
    append(path, row(4)[30:])
    assert one.look() == [4]
    assert one.said == []


def test_between_two_looks_nothing_is_asked_of_the_file_system(follow, tmp_path):
    path = tmp_path / "a.jsonl"
    append(path, row(1))
    one = follow(Named(path))
    assert one.look() == [1]
    append(path, row(2))
    assert one.look(LOOK_S / 2) == []
    assert one.look(LOOK_S / 2) == [2]


def test_a_file_need_not_be_there_yet(follow, tmp_path):
    path = tmp_path / "a.jsonl"
    one = follow(Named(path))
    assert one.look() == []
    assert one.said == [f"{path}: nothing is there yet; what comes is played"]
    append(path, row(1))
    assert one.look() == [1]


def test_a_last_row_without_a_line_break_comes_when_the_file_is_quiet(follow, tmp_path):
    path = tmp_path / "a.jsonl"
    append(path, rows(1, 2)[:-1])
    one = follow(Named(path))
    assert one.look() == [1]
    assert one.look() == [2]
    append(path, "\n" + row(3))
    assert one.look() == [3]


def test_half_a_last_line_is_a_row_at_the_end_and_a_bad_one(follow, tmp_path):
    path = tmp_path / "a.jsonl"
    append(path, row(1) + row(2)[:-2])
    one = follow(Named(path))
    assert one.settle() == [1]
    with pytest.raises(rm.ConfigError, match=r"a\.jsonl, line 2: not JSON"):
        one.finish()


def test_what_came_since_the_last_look_is_taken_at_the_end(follow, tmp_path):
    path = tmp_path / "a.jsonl"
    append(path, row(1))
    one = follow(Named(path))
    assert one.look() == [1]
    append(path, rows(2, 3)[:-1])
    assert one.finish() == [2, 3]


def test_many_rows_come_in_stretches_of_which_none_is_large(follow, tmp_path):
    path = tmp_path / "a.jsonl"
    append(path, rows(*range(5000)))
    one = follow(Named(path))
    assert len(next(one.source.stretches())) == 256
    assert one.look() == list(range(5000))


def test_a_bad_row_is_named_by_its_line_however_it_came(follow, tmp_path):
    path = tmp_path / "a.jsonl"
    append(path, rows(1, 2))
    one = follow(Named(path))
    one.look()
    append(path, "\n" + "{oops\n")
    with pytest.raises(rm.ConfigError, match=r"a\.jsonl, line 4: not JSON"):
        one.look()


def test_a_limit_is_one_of_all_that_comes(follow, tmp_path):
    path = tmp_path / "a.jsonl"
    append(path, rows(1, 2))
    one = follow(Named(path), limit=4)
    assert one.look() == [1, 2]
    append(path, rows(3, 4, 5, 6))
    assert one.look() == [3, 4]
    assert one.look() == []
    assert list(one._jobs) == []


# Logs that rotate.


def test_a_log_that_is_renamed_and_made_anew(follow, tmp_path):
    path = tmp_path / "a.jsonl"
    append(path, rows(1, 2))
    one = follow(Named(path))
    one.look()
    append(path, row(3))
    with path.open("a") as writer:
        path.rename(tmp_path / "a.jsonl.1")
        path.write_text(rows(2, 5))
        # Whoever has it open goes on for a moment.
        writer.write(row(4))
        writer.flush()
        assert one.look() == [3, 4]
        assert one.said == [
            f"{path} was replaced: it is read from its beginning; a row that was in it before is not played again"
        ]
        # Row 2 has come back, and is no other slot.
        assert one.settle() == [5]
    append(path, rows(2, 6))
    assert one.look() == [2, 6]


def test_a_log_that_is_away_for_a_while(follow, tmp_path):
    path = tmp_path / "a.jsonl"
    append(path, rows(1, 2))
    one = follow(Named(path))
    one.look()
    path.unlink()
    assert one.settle() == []
    append(path, rows(1, 2, 3))
    assert one.settle() == [3]


def test_a_log_that_is_copied_and_cut(follow, tmp_path):
    path = tmp_path / "a.jsonl"
    append(path, rows(1, 2, 3))
    one = follow(Named(path))
    one.look()
    os.truncate(path, 0)
    assert one.look() == []
    append(path, rows(4, 1))
    assert one.look() == [4]
    assert "was cut or written anew" in one.said[0]


def test_a_log_that_is_cut_and_longer_again_before_anybody_looks(follow, tmp_path):
    path = tmp_path / "a.jsonl"
    append(path, rows(1, 2, 3))
    one = follow(Named(path))
    one.look()
    path.write_text(rows(*range(20, 30), 1, 2))
    assert one.look() == list(range(20, 30))
    assert "was cut or written anew" in one.said[0]


def test_a_file_that_is_written_anew_with_more_in_it_asks_for_what_is_new(follow, tmp_path):
    path = tmp_path / "a.jsonl"
    append(path, rows(*range(600)))
    one = follow(Named(path))
    assert len(one.look()) == 600
    new = tmp_path / "new"
    new.write_text(rows(7, *range(600), 600))
    new.rename(path)
    # Row 7 is in it twice now.
    assert sorted(one.settle()) == [7, 600]


def test_equal_rows_count_as_often_as_they_are_there_at_one_time(follow, tmp_path):
    path = tmp_path / "a.jsonl"
    append(path, rows(1, 1))
    one = follow(Named(path))
    assert one.settle() == [1, 1]
    path.unlink()
    one.settle()
    append(path, rows(1, 1, 1))
    assert one.settle() == [1]
    os.truncate(path, 0)
    one.settle()
    append(path, rows(1))
    assert one.settle() == []


# Folders and patterns.


def test_files_join_a_folder_and_are_read_by_their_names(follow, tmp_path):
    append(tmp_path / "b.jsonl", row(2))
    append(tmp_path / "a.jsonl", row(1))
    one = follow(Named(tmp_path))
    assert one.look() == [1, 2]
    append(tmp_path / "d.jsonl", row(5))
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(row(4).encode()))
    append(tmp_path / "b.jsonl", row(3))
    append(tmp_path / "e.txt", row(6))
    assert one.look() == [3, 4, 5]


def test_a_file_that_is_renamed_into_place_counts_once_whatever_it_is_called_then(follow, tmp_path):
    one = follow(Named(tmp_path))
    append(tmp_path / "a.jsonl.tmp", rows(1, 2))
    assert one.look() == []
    (tmp_path / "a.jsonl.tmp").rename(tmp_path / "a.jsonl")
    assert one.look() == [1, 2]
    (tmp_path / "a.jsonl").rename(tmp_path / "z.jsonl")
    (tmp_path / "also.jsonl").hardlink_to(tmp_path / "z.jsonl")
    append(tmp_path / "z.jsonl", row(3))
    assert one.settle() == [3]


def test_a_log_of_a_folder_rotates_within_it(follow, tmp_path):
    append(tmp_path / "a.jsonl", rows(1, 2))
    one = follow(Pattern(str(tmp_path / "a.jsonl*")))
    one.look()
    (tmp_path / "a.jsonl").rename(tmp_path / "a.jsonl.1")
    append(tmp_path / "a.jsonl", rows(2, 3))
    # Both are there, so row 2 is there twice.
    assert one.settle() == [2, 3]


def test_a_file_that_moves_between_two_inputs_counts_once(follow, tmp_path):
    for name in ("in", "done"):
        (tmp_path / name).mkdir()
    append(tmp_path / "in/a.jsonl", rows(1, 2))
    one = follow(Named(tmp_path / "in"), Named(tmp_path / "done"), Pattern(str(tmp_path / "*/*.jsonl")))
    assert one.look() == [1, 2]
    (tmp_path / "in/a.jsonl").rename(tmp_path / "done/a.jsonl")
    append(tmp_path / "done/a.jsonl", row(3))
    assert one.settle() == [3]


def test_inputs_take_turns(follow, tmp_path):
    append(tmp_path / "a.jsonl", rows(*range(1000)))
    append(tmp_path / "b.jsonl", rows(2000, 2001))
    found = follow(Named(tmp_path / "a.jsonl"), Named(tmp_path / "b.jsonl")).look()
    assert found.index(2000) == 256
    assert len(found) == 1002


def test_files_that_are_taken_away_have_been_read(follow, tmp_path):
    one = follow(Named(tmp_path))
    for number in range(30):
        append(tmp_path / f"{number:02}.jsonl", row(number))
    assert one.look() == list(range(30))
    for number in range(30):
        (tmp_path / f"{number:02}.jsonl").unlink()
    append(tmp_path / "more.jsonl", row(99))
    assert one.settle() == [99]
    assert one.said == []


def test_a_file_that_goes_unread_is_said(follow, tmp_path):
    append(tmp_path / "a.jsonl", rows(*range(600)))
    append(tmp_path / "b.jsonl", row(1000))
    one = follow(Named(tmp_path))
    next(one._jobs)
    (tmp_path / "b.jsonl").unlink()
    assert sorted(one.settle()) == list(range(256, 600))
    assert one.said == [f"{tmp_path}/b.jsonl has gone before it was read to its end"]


def open_files() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def test_few_files_are_open_however_many_there_are(follow, tmp_path):
    one = follow(Named(tmp_path))
    before = open_files()
    for number in range(200):
        append(tmp_path / f"{number:03}.jsonl", row(number))
    assert len(one.look()) == 200
    assert open_files() - before < 20
    for number in range(200):
        append(tmp_path / f"{number:03}.jsonl", row(1000 + number))
    assert len(one.look()) == 200
    one.finish()
    assert open_files() == before


def test_a_folder_may_come_later_and_a_name_may_become_one(follow, tmp_path):
    one = follow(Named(tmp_path / "spool"))
    assert one.look() == []
    (tmp_path / "spool").mkdir()
    append(tmp_path / "spool/a.jsonl", row(1))
    assert one.look() == [1]


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_cannot_be_read_is_said(follow, tmp_path, what):
    path = tmp_path / "spool/a.jsonl"
    path.parent.mkdir()
    append(path, row(1))
    locked = path if what == "file" else path.parent
    one = follow(Named(path.parent))
    locked.chmod(0)
    try:
        if os.access(locked, os.R_OK):
            pytest.skip("whoever runs this may read everything")
        with pytest.raises(rm.ConfigError, match=f"{locked}: cannot be read: Permission denied"):
            one.look()
    finally:
        locked.chmod(0o700)


# Compressed files.


@pytest.mark.parametrize(("ending", "compress"), [(".gz", gzip.compress), (".zst", zstandard.compress)])
def test_compressed_files_grow_by_whole_frames_and_by_halves(follow, tmp_path, ending, compress):
    path = tmp_path / f"a.jsonl{ending}"
    append(path, compress(rows(*range(400)).encode()))
    one = follow(Named(path))
    assert one.look() == list(range(400))
    frame = compress(rows(*range(400, 800)).encode())
    append(path, frame[:50])
    assert one.look() in ([], list(range(400, 800))[: len(one.asked) - 400])
    append(path, frame[50:])
    one.look()
    assert one.asked == list(range(800))
    append(path, frame[:50])
    one.settle()
    with pytest.raises(rm.ConfigError, match="its end is missing"):
        one.finish()


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_file_that_is_not_what_its_name_says_is_said(follow, tmp_path, ending):
    path = tmp_path / f"a.jsonl{ending}"
    append(path, row(1))
    with pytest.raises(rm.ConfigError, match=r"a\.jsonl\.\w+: cannot be read: "):
        follow(Named(path)).look()


# Before and after.


def test_the_survey_is_of_what_is_there(follow, tmp_path):
    other = {"responses_create_params": {"input": "?"}, "agent_ref": {"name": "other"}}
    append(tmp_path / "a.jsonl", row(1) + json.dumps(other) + "\n" + row(2)[:10])
    one = follow(Named(tmp_path))
    survey = one.source.survey()
    assert set(survey.agents) == {"agent", "other"}
    assert survey.tasks is None
    assert one.source.count() is None
    append(tmp_path / "b.jsonl", "{oops\n")
    with pytest.raises(rm.ConfigError, match=r"b\.jsonl, line 1"):
        one.source.survey()
    assert set(one.source.survey(skip_bad=True).agents) == {"agent", "other"}
    assert one.source.files() == [tmp_path]
    assert one.source.takes(tmp_path / "out.jsonl")


def test_what_has_ended_is_not_parsed_again_and_what_has_grown_is_not_taken_for_it(tmp_path):
    path = tmp_path / "a.jsonl"
    parsed = []
    reader = Reader(lambda ref: parsed.append(1) or Player("agent", rm.Task))

    def play(index: Index) -> tuple[int, int]:
        """How many rows are parsed, and how many slots are played."""
        parsed.clear()
        jobs = list(Plan(Followed([Named(path)], [], reader), Ledger(index)))
        hold(index, *(entry(1.0, job.slot) for job in jobs))
        return len(parsed), len(jobs)

    with Index(None) as index:
        append(path, rows(*range(300)))
        assert play(index) == (300, 300)
        assert play(index) == (0, 0)
        append(path, rows(*range(300, 310)))
        # The first 256 are known.
        assert play(index) == (54, 10)
        append(path, rows(*range(310, 600)))
        assert play(index) == (344, 290)
        assert play(index) == (0, 0)


# Streams.


async def test_a_stream_is_waited_for_and_ends_the_source(follow, tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    one = follow(streams=[path])
    assert one.look() == []
    writing = os.open(path, os.O_WRONLY)
    waiting = asyncio.create_task(one.source.arrival())
    await asyncio.sleep(0)
    os.write(writing, row(1).encode())
    await waiting
    assert one.look() == [1]
    threading.Timer(0.05, os.close, [writing]).start()
    await one.source.arrival()
    assert one.look() == []
    assert list(one._jobs) == []
    assert one.source.survey().agents == {}


async def test_a_stream_beside_a_file_does_not_end_it(follow, tmp_path):
    pipe, path = tmp_path / "pipe", tmp_path / "a.jsonl"
    os.mkfifo(pipe)
    one = follow(Named(path), streams=[pipe])
    one.look()
    os.close(os.open(pipe, os.O_WRONLY))
    assert one.look() == []
    append(path, row(1))
    assert one.look() == [1]


# All of it, by chance.


class Writers:
    """Whoever writes to a folder: appends, rotates, cuts, removes, moves."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance = folder, chance

    def act(self) -> str:
        files = sorted(self.folder.glob("*.jsonl"))
        path = self.chance.choice([*files, self.folder / f"{self.chance.randrange(5)}.jsonl"])
        kinds = ("append", "append", "rotate", "cut", "rewrite", "remove", "move")
        kind = self.chance.choice(kinds) if path.exists() else "append"
        getattr(self, kind)(path)
        return f"{kind} {path.name}"

    def some(self) -> str:
        return rows(*(self.chance.randrange(12) for _ in range(self.chance.randrange(1, 6))))

    def append(self, path: Path) -> None:
        append(path, self.some())

    def rotate(self, path: Path) -> None:
        path.rename(path.with_suffix(".old"))
        path.write_text(self.some())

    def cut(self, path: Path) -> None:
        os.truncate(path, 0)

    def rewrite(self, path: Path) -> None:
        part = path.with_suffix(".part")
        part.write_text(path.read_text() + self.some())
        part.replace(path)

    def remove(self, path: Path) -> None:
        path.unlink()

    def move(self, path: Path) -> None:
        path.rename(self.folder / f"{self.chance.randrange(5)}.jsonl")

    def held(self) -> Counter[int]:
        return Counter(
            json.loads(line)["n"] for path in self.folder.glob("*.jsonl") for line in path.read_text().splitlines()
        )


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_row_is_asked_for_as_often_as_it_was_there_at_one_time(follow, tmp_path, seed):
    chance = random.Random(seed)
    writers, expected, done = Writers(tmp_path, chance), Counter(), []
    one = follow(Named(tmp_path))
    for _ in range(40):
        done.append(writers.act())
        one.settle()
        expected |= writers.held()
        assert Counter(one.asked) == expected, done
    # And a run that begins only now asks for nothing that this one did not.
    again = follow(Named(tmp_path))
    again.settle()
    assert Counter(again.asked) == writers.held() <= expected


def test_lingering_is_short_enough_for_the_tests():
    assert LINGER_S < 6 * LOOK_S
