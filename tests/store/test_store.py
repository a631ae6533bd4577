import os
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest
import zstandard
from msgspec import Raw
from tests.store.rows import append, begun, die, failed, indexed, opened, owed, rewarded, rows_at, task

import rollmill as rm
from rollmill.store import repair
from rollmill.store.failures import NAME as FAILURES
from rollmill.store.index import NAME as INDEX
from rollmill.store.store import Store
from rollmill.types import encode

A, B, C = (rewarded(name, 0, index) for index, name in enumerate("abc"))
ABC = (A, B, C)
LINES = b"".join(made.row + b"\n" for made in ABC)


@pytest.fixture(params=["a.jsonl", "a.jsonl.zst"])
def any_path(request, tmp_path: Path) -> Path:
    return tmp_path / request.param


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.jsonl"


def folder(path: Path) -> Path:
    return path.with_name("a.run")


def quarantined(path: Path) -> list[dict]:
    file = folder(path) / repair.QUARANTINE
    return [msgspec.json.decode(line) for line in file.read_bytes().splitlines()] if file.exists() else []


def recorded(path: Path, *made) -> None:
    with opened(path) as store:
        append(store, *made)


def crashed(path: Path, *made) -> None:
    """The process that recorded this was killed."""
    store = begun(path)
    append(store, *made)
    die(store)


def test_what_was_recorded_is_held_when_it_is_opened_again(any_path):
    recorded(any_path, A, failed("b", 0, 1))
    with opened(any_path) as store:
        assert owed(store, "a", "b", "c") == ["c"]
        assert (store.totals.rewarded, store.totals.failed) == (1, 1)
        assert rows_at(store) == [A.row]


def test_what_was_recorded_before_a_crash_is_held(any_path):
    crashed(any_path, A, failed("b", 0, 1))
    with opened(any_path) as store:
        assert owed(store, "a", "b", "c") == ["c"]
        assert store.found.torn_bytes == store.found.doubled == 0


def test_an_index_that_is_lost_is_made_anew(any_path):
    recorded(any_path, A, B, failed("c", 0, 2))
    with opened(any_path) as store:
        before, totals = indexed(store), store.totals
    (folder(any_path) / INDEX).unlink()
    with opened(any_path) as store:
        assert (indexed(store), store.totals) == (before, totals)
        assert rows_at(store) == [A.row, B.row]


@pytest.mark.parametrize("garbage", [b"garbage" * 1000, b"", b"SQLite format 3\0" + b"x" * 8176])
def test_an_index_that_is_none_is_made_anew(path, garbage):
    recorded(path, *ABC)
    (folder(path) / INDEX).write_bytes(garbage)
    with opened(path) as store:
        assert owed(store, "a", "b", "c", "d") == ["d"]
        assert store.totals.rewarded == 3


def test_an_index_with_garbage_on_any_page_never_loses_a_rollout(path):
    with opened(path) as store:
        append(store, *(rewarded(f"t{number}", 0, number) for number in range(60)))
    whole, rows = (folder(path) / INDEX).read_bytes(), path.read_bytes()
    page = 4096
    for start in range(0, len(whole), page):
        (folder(path) / INDEX).write_bytes(whole[:start] + b"\xaa" * page + whole[start + page :])
        with Store(path) as store:
            try:
                store.open()
                assert owed(store, *(f"t{number}" for number in range(61))) == ["t60"]
            except rm.StoreError as error:
                assert "remove it, the next run makes it anew" in str(error)  # noqa: PT017
        assert path.read_bytes() == rows
        for file in folder(path).glob(f"{INDEX}*"):
            file.unlink()


def test_the_index_of_another_file_is_made_anew(path):
    recorded(path, A, B)
    path.write_bytes(C.row + b"\n")
    with opened(path) as store:
        assert owed(store, "a", "b", "c") == ["a", "b"]
        assert rows_at(store) == [C.row]


def test_an_output_that_was_removed_is_begun_anew(path):
    recorded(path, A, failed("b", 0, 1))
    path.unlink()
    with opened(path) as store:
        assert owed(store, "a", "b") == ["a"]
        assert store.totals.rewarded == 0


def test_a_file_that_was_edited_is_read_anew(path):
    recorded(path, *ABC)
    path.write_bytes(A.row + b"\n" + C.row + b"\n")
    with opened(path) as store:
        assert owed(store, "a", "b", "c") == ["b"]
        assert rows_at(store) == [A.row, C.row]
        assert store.totals.rewarded == 2


def test_a_file_edited_in_its_middle_is_read_anew_though_its_size_and_its_ends_are_the_same(path):
    recorded(path, *(rewarded(f"t{number:02}", 0, number) for number in range(30)))
    content = path.read_bytes()
    status = path.stat()
    assert content.count(b"t15") > 0
    path.write_bytes(content.replace(task("t15").identity.encode(), b"f" * 32))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with opened(path) as store:
        assert owed(store, *(f"t{number:02}" for number in range(30))) == ["t15"]


@pytest.mark.parametrize("end", [recorded, crashed])
def test_rows_that_were_put_at_its_end_by_hand_count(path, end):
    end(path, A)
    with path.open("ab") as file:
        file.write(B.row + b"\n" + A.row + b"\n")
    with opened(path) as store:
        assert owed(store, "a", "b", "c") == ["c"]
        assert store.found.doubled == 1
        assert rows_at(store) == [A.row, B.row]
    assert path.read_bytes() == A.row + b"\n" + B.row + b"\n"


@pytest.mark.parametrize("stride", [29, pytest.param(1, marks=pytest.mark.slow)])
def test_a_last_row_torn_anywhere_is_owed_and_nothing_else(path, stride):
    recorded(path, A)
    before = path.read_bytes()
    for size in range(1, len(B.row), stride):
        path.write_bytes(before + B.row[:size])
        with opened(path) as store:
            assert store.found.torn_bytes == size
            assert owed(store, "a", "b", "c") == ["b", "c"]
            append(store, C)
        assert path.read_bytes() == before + C.row + b"\n"
        assert quarantined(path)[-1] == {
            "offset": len(before),
            "length": size,
            "why": "torn",
            "text": B.row[:size].decode(),
        }
        (folder(path) / repair.QUARANTINE).unlink()


def test_a_row_torn_in_the_middle_of_a_letter_is_kept_byte_for_byte(path):
    torn = b'{"said":"h\xc3'
    path.write_bytes(A.row + b"\n" + torn)
    with opened(path):
        pass
    (aside,) = quarantined(path)
    assert msgspec.json.decode(encode(aside["base64"]), type=bytes) == torn


def test_a_whole_last_row_that_lost_its_line_break_counts(path):
    path.write_bytes(A.row + b"\n" + B.row)
    with opened(path) as store:
        assert owed(store, "a", "b", "c") == ["c"]
        append(store, C)
    assert path.read_bytes() == LINES
    with opened(path) as store:
        assert rows_at(store) == [A.row, B.row, C.row]


def test_a_torn_last_frame_is_cut_and_its_rows_are_owed(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    with opened(path) as store:
        append(store, A)
        size = path.stat().st_size
        append(store, B, C)
    whole = path.read_bytes()
    for end in range(size + 1, len(whole), 7):
        path.write_bytes(whole[:end])
        with opened(path) as store:
            assert store.found.torn_bytes == end - size
            assert owed(store, "a", "b", "c") == ["b", "c"]
        assert path.read_bytes() == whole[:size]


def test_garbage_between_frames_goes_and_the_rows_around_it_stay(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    with opened(path) as store:
        append(store, A)
        size = path.stat().st_size
        append(store, B)
    whole = path.read_bytes()
    path.write_bytes(whole[:size] + b"\0" * 5000 + whole[size:])
    with opened(path) as store:
        assert store.found.garbage == [size]
        assert rows_at(store) == [A.row, B.row]
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("between", "why"),
    [
        (b"no JSON\n", "garbage"),
        (b"\0" * 4096 + b"\n", "garbage"),
        (B.row[: len(B.row) // 2] + b"\n", "garbage"),
        (b"\xff\xfe\n", "garbage"),
        (A.row + b"\n", "doubled"),
        (b"[" * 100_000 + b"\n", "garbage"),
    ],
    ids=["text", "zeros", "half", "bytes", "doubled", "deep"],
)
def test_what_does_not_belong_in_the_middle_goes_and_is_kept_aside(path, between, why):
    path.write_bytes(A.row + b"\n" + between + C.row + b"\n")
    with opened(path) as store:
        assert owed(store, "a", "b", "c") == ["b"]
        assert rows_at(store) == [A.row, C.row]
        assert store.totals.rewarded == 2
        assert (len(store.found.garbage), store.found.doubled) == ((1, 0) if why == "garbage" else (0, 1))
    assert path.read_bytes() == A.row + b"\n" + C.row + b"\n"
    (aside,) = quarantined(path)
    assert (aside["offset"], aside["length"]) == (len(A.row) + 1, len(between))
    assert aside["why"].startswith(why)


def test_rows_that_never_were_rollouts_of_ours_stay(path):
    foreign = b'{"reward": 1}\n3\n\n   \n'
    path.write_bytes(foreign + A.row + b"\n")
    with opened(path) as store:
        assert (store.found.foreign, store.found.first_foreign) == (2, 0)
        assert rows_at(store) == [A.row]
    assert path.read_bytes() == foreign + A.row + b"\n"
    assert quarantined(path) == []


def test_windows_line_ends_and_a_mark_at_the_beginning_do_no_harm(path):
    content = b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n")
    path.write_bytes(content)
    with opened(path) as store:
        assert owed(store, "a", "b", "c") == []
        assert rows_at(store) == [A.row, B.row, C.row]
    assert path.read_bytes() == content


def test_the_first_of_two_rows_for_a_slot_counts_in_a_compressed_output_too(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    other = rewarded("a", 0, 0, reward=0.0)
    content = zstandard.compress(LINES) + zstandard.compress(other.row + b"\n")
    path.write_bytes(content)
    for _ in range(2):
        with opened(path) as store:
            assert rows_at(store) == [A.row, B.row, C.row]
            assert store.totals.numbers["reward"].total == 3.0
    assert path.read_bytes() == content


def test_a_reward_takes_the_place_of_a_failure_and_never_the_other_way_round(path):
    for again in (failed("a"), A, failed("a", kind="later")):
        recorded(path, again)
    with opened(path) as store:
        before = indexed(store)
        assert (store.totals.rewarded, store.totals.failed, store.found.doubled) == (1, 0, 0)
        assert store.totals.parts["agent"]["some_agent"].ended == 1
    for file in folder(path).glob(f"{INDEX}*"):
        file.unlink()
    with opened(path) as store:
        assert indexed(store) == before
        assert (store.totals.rewarded, store.totals.failed, store.found.doubled) == (1, 0, 0)


def test_half_lines_in_the_log_of_failures_harm_nobody(path):
    recorded(path, failed("a", 0, 0))
    log = folder(path) / FAILURES
    whole = log.read_bytes()
    for size in range(0, len(whole) - 1, 13):
        log.write_bytes(whole + whole[:size])
        with opened(path) as store:
            assert owed(store, "a", "b") == ["b"]
            append(store, failed("b", 0, 1))
        with opened(path) as store:
            assert owed(store, "a", "b", "c") == ["c"]
        assert log.read_bytes().startswith(whole + whole[:size])


def test_attempts_that_were_not_the_last_leave_their_slot_owed(path):
    with opened(path) as store:
        store.failures.append(failed("a"), Raw(b"[1]"), final=False)
        append(store, B)
    with opened(path) as store:
        assert owed(store, "a", "b") == ["a"]
    (line,) = (folder(path) / FAILURES).read_bytes().splitlines()
    assert msgspec.json.decode(line)["response"] == [1]


def dying(path: Path, step: int) -> bool:
    """Open an output in a process that dies before it asks the system for the n-th time to change something."""
    program = textwrap.dedent(
        """
        import os, sys
        from pathlib import Path
        from rollmill.store.store import Store

        CHANGING = ("open", "os.truncate", "os.rename", "os.remove", "os.chmod", "sqlite3.connect")
        left = int(sys.argv[2])

        def count(event, arguments):
            # What only reads changes nothing.
            global left
            if event in CHANGING and not (event == "open" and arguments[1] == "rb"):
                step()

        def step():
            global left
            left -= 1
            if left < 0:
                os._exit(9)

        def counted(function):
            def call(*arguments):
                step()
                return function(*arguments)
            return call

        os.write, os.fsync = counted(os.write), counted(os.fsync)
        sys.addaudithook(count)
        with Store(Path(sys.argv[1])) as store:
            store.open()
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path), str(step)], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 9), done.stderr
    return done.returncode == 9


BROKEN = {
    "torn": LINES + B.row[:99],
    "middle": A.row + b"\nno JSON\n" + B.row + b"\n" + A.row + b"\n" + C.row + b"\n",
    "both": A.row + b"\n" + A.row + b"\n" + b"\0" * 100 + b"\n" + B.row + b"\n" + C.row + b"\n" + A.row[:70],
}


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("known", [True, False], ids=["indexed", "unknown"])
def test_a_repair_that_dies_at_any_step_is_finished_by_the_next(tmp_path, broken, known):
    step = 0
    while True:
        path = tmp_path / str(step) / "a.jsonl"
        path.parent.mkdir()
        if known:
            crashed(path, A)
        path.write_bytes(broken)
        died = dying(path, step)
        # Twice at the same step, then in peace.
        if died:
            dying(path, step)
        with opened(path) as store:
            assert owed(store, "a", "b", "c") == []
            assert rows_at(store) == [A.row, B.row, C.row]
            assert store.totals.rewarded == 3
        assert path.read_bytes() == LINES
        assert everything_was_kept(path, broken)
        assert sorted(entry.name for entry in path.parent.iterdir()) == ["a.jsonl", "a.run"]
        if not died:
            assert step > 5
            break
        step += 1


def everything_was_kept(path: Path, broken: bytes) -> bool:
    """Every byte that is gone is in the quarantine at its offset; what is there once more is there for a crash."""
    rest = broken
    for aside in sorted({(one["offset"], one["length"], one["text"]) for one in quarantined(path)}, reverse=True):
        offset, length, text = aside
        assert broken[offset : offset + length] == text.encode()
        rest = rest[:offset] + rest[offset + length :]
    return rest == path.read_bytes()


def test_a_repair_that_is_begun_again_sets_the_same_bytes_aside_once(path):
    path.write_bytes(BROKEN["both"])
    folder(path).mkdir()
    ranges = [repair.Range(5, 9, "garbage"), repair.Range(20, 25, "torn")]
    for _ in range(3):
        repair.set_aside(folder(path), path, ranges)
    assert [one["offset"] for one in quarantined(path)] == [5, 20]
    repair.set_aside(folder(path), path, [repair.Range(6, 9, "garbage")])
    assert [one["offset"] for one in quarantined(path)] == [5, 20, 6]


def test_half_a_record_in_the_quarantine_does_not_swallow_the_next(path):
    path.write_bytes(b"0123456789")
    folder(path).mkdir()
    (folder(path) / repair.QUARANTINE).write_bytes(b'{"offset":1,"len')
    repair.set_aside(folder(path), path, [repair.Range(2, 4, "garbage")])
    half, record = (folder(path) / repair.QUARANTINE).read_bytes().splitlines()
    assert half == b'{"offset":1,"len'
    assert msgspec.json.decode(record)["text"] == "23"


def test_a_file_is_rewritten_without_many_ranges_at_once(path):
    count = 100_000
    path.write_bytes(b"".join(b"keep\ndrop\n" for _ in range(count)))
    path.chmod(0o640)
    repair.rewrite_without(path, [repair.Range(10 * n + 5, 10 * n + 10, "doubled") for n in range(count)])
    assert path.read_bytes() == b"keep\n" * count
    assert path.stat().st_mode & 0o777 == 0o640


def test_an_output_behind_a_link_is_mended_where_it_is(tmp_path):
    real, link = tmp_path / "real.jsonl", tmp_path / "a.jsonl"
    real.write_bytes(A.row + b"\nno JSON\n" + B.row + b"\n")
    link.symlink_to(real)
    with opened(link) as store:
        assert rows_at(store) == [A.row, B.row]
    assert link.is_symlink()
    assert real.read_bytes() == A.row + b"\n" + B.row + b"\n"


def test_an_output_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "a.jsonl", Path("/proc/none/a.jsonl")):
        with pytest.raises(rm.ConfigError, match="cannot be written"), Store(path):
            pass
    (tmp_path / "a.jsonl").mkdir()
    with pytest.raises(rm.ConfigError, match="not a regular file"), Store(tmp_path / "a.jsonl"):
        pass


def test_a_run_that_recorded_nothing_leaves_nothing(tmp_path):
    with Store(tmp_path / "a.jsonl"):
        pass
    with opened(tmp_path / "b.jsonl"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_changed_before_it_is_opened(path):
    path.write_bytes(A.row[:50])
    with Store(path):
        assert path.read_bytes() == A.row[:50]
    assert [entry.name for entry in path.parent.iterdir()] == ["a.jsonl"]


def test_an_index_from_before_the_machine_went_down_is_not_trusted(path):
    crashed(path, A, B)
    with sqlite3.connect(folder(path) / INDEX) as index:
        # Some pages reached the disk and some did not: this one says more than the others know.
        index.execute("UPDATE about SET value = 'before' WHERE name = 'boot'")
        index.execute("DELETE FROM rollout WHERE task_index = 0")
    index.close()
    with opened(path) as store:
        assert owed(store, "a", "b") == []
        assert store.totals.rewarded == 2


def test_an_error_while_it_is_closed_frees_the_lock_all_the_same(path):
    store = begun(path)
    append(store, A)
    with Path("/dev/null").open("wb") as nowhere:
        os.dup2(nowhere.fileno(), store.journal._file._file)
    with pytest.raises(rm.StoreError, match="cannot be brought to the disk"):
        store.close()
    with opened(path) as store:
        assert owed(store, "a", "b") == ["b"]
