import itertools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import zstandard

import rollmill as rm
from rollmill.store.folder import run_folder
from rollmill.store.journal import Journal, open_journal
from rollmill.store.lines import Broken, Line, Place, read_at, read_lines

PLAIN, COMPRESSED = "a.jsonl", "a.jsonl.zst"
each_kind = pytest.mark.parametrize("name", [PLAIN, COMPRESSED])


def whole(path: Path) -> bytes:
    """What a reader of the format sees."""
    if path.suffix != ".zst":
        return path.read_bytes()
    with path.open("rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()


def contents(path: Path) -> list[bytes]:
    return [line.content for line in read_lines(path) if isinstance(line, Line)]


@each_kind
def test_rows_are_there_when_it_is_opened_again(tmp_path, name):
    path = tmp_path / name
    for rows in ([b"one", b"two"], [b"three"]):
        journal = open_journal(path)
        for row in rows:
            journal.append(row)
        journal.close()
    assert whole(path) == b"one\ntwo\nthree\n"
    assert contents(path) == [b"one", b"two", b"three"]


@each_kind
def test_every_row_is_found_at_its_place(tmp_path, name):
    journal = open_journal(tmp_path / name)
    placed = []
    for number in range(100):
        row = b"row %d " % number + b"x" * number * 50
        placed.append((journal.append(row), row))
        if number % 7 == 0:
            journal.commit()
    journal.close()
    assert [read_at(journal.path, place) for place, _ in placed] == [row for _, row in placed]
    found = [line for line in read_lines(journal.path) if isinstance(line, Line)]
    assert [(line.place, line.content) for line in found] == placed


@each_kind
def test_reading_begins_where_a_reader_stopped(tmp_path, name):
    journal = open_journal(tmp_path / name)
    journal.append(b"one")
    journal.commit()
    size = journal.size
    journal.append(b"two")
    journal.close()
    (line,) = read_lines(journal.path, size)
    assert (line.content, line.start) == (b"two", size)


@each_kind
def test_what_was_committed_survives_the_death_of_its_process(tmp_path, name):
    path = tmp_path / name
    program = textwrap.dedent(
        f"""
        import os, signal
        from pathlib import Path
        from rollmill.store.journal import open_journal
        journal = open_journal(Path({str(path)!r}))
        journal.append(b"one")
        journal.append(b"two")
        journal.commit()
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    assert whole(path) == b"one\ntwo\n"


@each_kind
def test_an_output_that_got_no_row_is_not_made(tmp_path, name):
    open_journal(tmp_path / name).close()
    assert list(tmp_path.iterdir()) == []


@each_kind
def test_an_empty_file_that_was_there_stays(tmp_path, name):
    (tmp_path / name).touch()
    open_journal(tmp_path / name).close()
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@each_kind
def test_it_can_be_closed_twice(tmp_path, name):
    journal = open_journal(tmp_path / name)
    journal.append(b"one")
    journal.close()
    journal.close()
    assert whole(journal.path) == b"one\n"


def test_a_row_without_its_line_break_does_not_swallow_the_next(tmp_path):
    path = tmp_path / PLAIN
    path.write_bytes(b"one\ntwo")
    journal = Journal(path)
    place = journal.append(b"three")
    journal.close()
    assert path.read_bytes() == b"one\ntwo\nthree\n"
    assert read_at(path, place) == b"three"


def limited(path: Path, limit: int, rows: list[int]) -> list[str]:
    """Append rows of these lengths, and commit, where no file may be longer than this; what became of each."""
    program = textwrap.dedent(
        f"""
        import resource
        from pathlib import Path
        from rollmill.errors import StoreError
        from rollmill.store.journal import open_journal
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
        journal = open_journal(Path({str(path)!r}))
        for length in {rows}:
            try:
                journal.append(bytes([97 + length % 26]) * length)
                journal.commit()
                print("kept")
            except StoreError as error:
                print(error)
        journal.close()
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_half_a_row_on_a_full_disk_is_taken_back(tmp_path):
    path = tmp_path / PLAIN
    said = limited(path, 1000, [900, 200, 50, 400, 10])
    assert said == [
        "kept",
        f"{path}: cannot append: File too large",
        "kept",
        f"{path}: cannot append: File too large",
        "kept",
    ]
    assert path.read_bytes() == b"q" * 900 + b"\n" + b"y" * 50 + b"\n" + b"k" * 10 + b"\n"


def test_a_torn_row_on_a_full_disk_stays_as_it_is(tmp_path):
    path = tmp_path / PLAIN
    path.write_bytes(b"x" * 1000)
    assert limited(path, 1000, [10]) == [f"{path}: cannot append: File too large"]
    assert path.read_bytes() == b"x" * 1000


def test_half_a_frame_on_a_full_disk_is_taken_back(tmp_path):
    path = tmp_path / COMPRESSED
    path.write_bytes(zstandard.compress(os.urandom(900).hex().encode() + b"\n"))
    before = path.read_bytes()
    room = len(before) + 30
    assert limited(path, room, [100, 20, 1]) == [
        "kept",
        f"{path}: cannot append: File too large",
        f"{path}: cannot append: File too large",
    ]
    assert whole(path) == whole_of(before) + b"w" * 100 + b"\n"


def whole_of(content: bytes) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True).read()


def test_a_full_disk_is_a_store_error():
    journal = Journal(Path("/dev/full"))
    journal.append(b"{}")
    with pytest.raises(rm.StoreError, match="/dev/full: cannot append: No space left on device"):
        journal.hand_over()
    # What could not be written is owed, and never written later.
    journal.hand_over()


def test_rows_are_in_the_file_when_they_are_handed_over_or_are_many(tmp_path):
    journal = Journal(tmp_path / "a.jsonl")
    assert journal.append(b"one") == Place(0, 3)
    assert journal.append(b"two") == Place(4, 3)
    assert contents(journal.path) == []
    journal.hand_over()
    assert contents(journal.path) == [b"one", b"two"]
    large = [b"%d" % number + b"x" * 2**16 for number in range(21)]
    for row in large:
        journal.append(row)
    assert contents(journal.path) == [b"one", b"two", *large[:20]]
    journal.close()
    assert contents(journal.path) == [b"one", b"two", *large]


def test_more_rows_are_handed_over_than_one_call_takes(tmp_path):
    journal = Journal(tmp_path / "a.jsonl")
    rows = [b"%d" % number for number in range(5000)]
    for row in rows:
        journal.append(row)
    journal.close()
    assert contents(journal.path) == rows


def test_a_write_that_takes_less_goes_on_where_it_stopped(tmp_path, monkeypatch):
    whole = os.writev
    monkeypatch.setattr(os, "writev", lambda file, parts: os.write(file, b"".join(parts)[:7]))
    journal = Journal(tmp_path / "a.jsonl")
    for row in (b"one", b"two", b"three"):
        journal.append(row)
    journal.hand_over()
    monkeypatch.setattr(os, "writev", whole)
    journal.append(b"four")
    journal.close()
    assert contents(journal.path) == [b"one", b"two", b"three", b"four"]


def test_what_cannot_be_brought_to_the_disk_is_a_store_error():
    # There is nothing that a null device could bring anywhere.
    with pytest.raises(rm.StoreError, match="/dev/null: cannot be brought to the disk: Invalid argument"):
        Journal(Path("/dev/null")).sync()


def test_an_output_that_cannot_be_opened_raises_what_the_system_says(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_journal(tmp_path / "none" / PLAIN)


def frames(path: Path, *rows: bytes) -> list[bytes]:
    """Write one frame for each row."""
    journal = open_journal(path)
    ends = [0]
    for row in rows:
        journal.append(row)
        journal.commit()
        ends.append(journal.size)
    journal.close()
    content = path.read_bytes()
    return [content[start:end] for start, end in itertools.pairwise(ends)]


def test_a_last_frame_torn_anywhere_is_broken_and_the_others_are_read(tmp_path):
    path = tmp_path / COMPRESSED
    first, second = frames(path, b"one", b"two two two")
    for size in range(1, len(second)):
        path.write_bytes(first + second[:size])
        line, broken = read_lines(path)
        assert line.content == b"one"
        assert broken == Broken(len(first), len(first) + size, last=True)


def test_a_frame_in_which_any_byte_has_turned_is_not_another_row(tmp_path):
    path = tmp_path / COMPRESSED
    first, second, third = frames(path, b"one", b"two two two", b"three")
    for place in range(len(second)):
        turned = bytearray(second)
        turned[place] ^= 0x55
        path.write_bytes(first + turned + third)
        found = [line.content for line in read_lines(path) if isinstance(line, Line)]
        assert found == [b"one", b"three"], place


def test_garbage_between_frames_has_its_place(tmp_path):
    path = tmp_path / COMPRESSED
    first, second = frames(path, b"one", b"two")
    path.write_bytes(first + b"\0" * 40_000 + second)
    one, broken, two = read_lines(path)
    assert (one.content, two.content) == (b"one", b"two")
    assert broken == Broken(len(first), len(first) + 40_000, last=False)
    assert read_at(path, two.place) == b"two"


def test_a_frame_longer_than_a_chunk_is_whole(tmp_path):
    path = tmp_path / COMPRESSED
    rows = [os.urandom(50_000).hex().encode() for _ in range(3)]
    frames(path, *rows)
    assert contents(path) == rows


def test_what_other_programs_compressed_is_read(tmp_path):
    path = tmp_path / COMPRESSED
    stream = zstandard.ZstdCompressor(level=19).compressobj()
    path.write_bytes(stream.compress(b"\xef\xbb\xbfone\r\ntwo\n") + stream.flush())
    one, two = read_lines(path)
    assert (one.content, two.content) == (b"one", b"two")
    assert [read_at(path, line.place) for line in (one, two)] == [b"one", b"two"]


def test_windows_line_ends_and_marks_are_not_part_of_a_row(tmp_path):
    path = tmp_path / PLAIN
    path.write_bytes(b"\xef\xbb\xbfone\r\n\xef\xbb\xbftwo\n\nthree")
    lines = list(read_lines(path))
    assert [line.content for line in lines] == [b"one", b"two", b"", b"three"]
    assert [read_at(path, line.place) for line in lines] == [b"one", b"two", b"", b"three"]
    assert [line.start for line in lines] == [0, 8, 15, 16]
    assert [line.whole for line in lines] == [True, True, True, False]


def test_only_outputs_match_the_glob_of_outputs(tmp_path):
    assert run_folder(tmp_path / "rollouts_chunk_00.jsonl").name == "rollouts_chunk_00.run"
    assert run_folder(tmp_path / "rollouts_chunk_00.jsonl.zst").name == "rollouts_chunk_00.run"
    assert not run_folder(tmp_path / PLAIN).match("*.jsonl")
