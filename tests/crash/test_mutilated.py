"""Outputs that a crash, an editor or a disk has spoiled: the next run mends them and plays what is missing alone."""

import json
import shutil

import pytest
from tests.crash.check import check
from tests.crash.command import Collect


@pytest.fixture
def finished(tmp_path, serve, rows):
    """A collection of six errands that is done, with what the server was asked so far."""
    planned = rows(6)
    server = serve(turns=1)
    collect = Collect(tmp_path, server.url, concurrency=1)
    collect.finish()
    check(collect.output, planned)
    return collect, planned, server


def mended(finished, numbers: list[int]):
    """Run it again; it is whole, and these errands alone were played."""
    collect, planned, server = finished
    ended = collect.run()
    assert ended.code == 0, ended.err
    check(collect.output, planned)
    assert sorted(one.number for one in server.stop()[len(planned) :]) == numbers
    return ended


def torn(collect: Collect, left: int) -> int:
    """Leave so many bytes of the last line; less than none leaves all but so many. Which errand it was."""
    whole = collect.output.read_bytes()
    start = whole[:-1].rfind(b"\n") + 1
    last = whole[start:]
    collect.output.write_bytes(whole[:start] + last[:left])
    return json.loads(last)["number"]


@pytest.mark.parametrize("left", [0, 1, 200, -2])
@pytest.mark.parametrize("index", ["with its index", "without"])
def test_a_torn_last_line_is_owed_again(finished, left, index):
    collect, _, _ = finished
    number = torn(collect, left)
    if index == "without":
        (collect.run_folder / "index.sqlite").unlink()
    mended(finished, [number])


@pytest.mark.parametrize("index", ["with its index", "without"])
def test_a_last_line_without_its_break_is_whole_or_owed_and_swallows_nothing(finished, index):
    collect, planned, server = finished
    number = torn(collect, -1)
    if index == "without":
        shutil.rmtree(collect.run_folder)
    assert collect.run("--repeats", "2").code == 0
    check(collect.output, planned, 2)
    again = sorted(one.number for one in server.stop()[len(planned) :])
    assert again in (sorted(row["number"] for row in planned), sorted([*(row["number"] for row in planned), number]))


def insert(collect: Collect, after: int, content: bytes) -> int:
    lines = collect.output.read_bytes().splitlines(keepends=True)
    collect.output.write_bytes(b"".join([*lines[:after], content, *lines[after:]]))
    return len(b"".join(lines[:after]))


def quarantined(collect: Collect) -> list[dict]:
    return [json.loads(line) for line in (collect.run_folder / "quarantine.ndjson").read_bytes().splitlines()]


@pytest.mark.parametrize("content", [b"no JSON at all\n", b"\0" * 4096 + b"\n", b'{"half": \n'])
def test_garbage_in_the_middle_is_moved_aside_with_its_place(finished, content):
    collect, _, _ = finished
    offset = insert(collect, 3, content)
    mended(finished, [])
    assert [(aside["offset"], aside["length"]) for aside in quarantined(collect)] == [(offset, len(content))]


def test_a_line_that_was_half_overwritten_is_owed_again(finished):
    collect, _, _ = finished
    lines = collect.output.read_bytes().splitlines(keepends=True)
    number = json.loads(lines[2])["number"]
    lines[2] = lines[2][:100] + b"\0" * (len(lines[2]) - 101) + b"\n"
    collect.output.write_bytes(b"".join(lines))
    mended(finished, [number])


def test_a_doubled_row_collapses(finished):
    collect, _, _ = finished
    lines = collect.output.read_bytes().splitlines(keepends=True)
    insert(collect, 4, lines[1])
    ended = mended(finished, [])
    assert "too many" in ended.err or "doubled" in ended.err or "twice" in ended.err


def test_a_row_with_other_line_breaks_and_a_mark_at_the_beginning_are_read(finished):
    collect, _, _ = finished
    content = collect.output.read_bytes()
    collect.output.write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    mended(finished, [])


def test_an_empty_index_and_one_that_is_no_database_are_made_anew(finished):
    collect, _, _ = finished
    index = collect.run_folder / "index.sqlite"
    index.write_bytes(b"")
    assert collect.run().code == 0
    index.write_bytes(b"garbage " * 1000)
    mended(finished, [])


def test_an_index_of_another_moment_is_not_believed(finished, tmp_path):
    collect, _, _ = finished
    index = collect.run_folder / "index.sqlite"
    old = index.read_bytes()
    insert(collect, 0, b"")
    lines = collect.output.read_bytes().splitlines(keepends=True)
    collect.output.write_bytes(b"".join(reversed(lines[1:])))
    index.write_bytes(old)
    mended(finished, [json.loads(lines[0])["number"]])
