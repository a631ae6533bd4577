import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import rollmill as rm
from rollmill.store.journal import Journal, run_folder
from rollmill.store.schema import write_row


class Echo(rm.Environment[rm.Task]):
    def verify(self, task, response):
        return 1.0


async def some_row(text: str, repeat: int = 0) -> bytes:
    task = rm.Task.of(text)
    slot = rm.Slot("agent", task.identity, 0, repeat, 0, repeat)
    return write_row(await rm.play(task, Echo, rm.ToolAgent(), rm.Scripted("ok"), slot=slot), "run")


async def test_rows_are_there_when_it_is_opened_again(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [await some_row("a"), await some_row("b")]
    with Journal(path) as journal:
        for row in rows:
            journal.append(row)
    assert path.read_bytes().splitlines() == rows
    with Journal(path) as journal:
        assert [summary.reward for summary in journal.summaries()] == [1.0, 1.0]


async def test_a_line_torn_at_any_byte_is_cut_and_kept_aside(tmp_path):
    first, second = await some_row("a"), await some_row("b")
    for cut in range(1, len(second)):
        path = tmp_path / f"{cut}.jsonl"
        path.write_bytes(first + b"\n" + second[:cut])
        with Journal(path) as journal:
            assert len(list(journal.summaries())) == 1
            assert journal.torn_bytes == cut
            journal.append(second)
        assert path.read_bytes() == first + b"\n" + second + b"\n"
        (kept,) = run_folder(path).glob(f"torn-{len(first) + 1}-*")
        assert kept.read_bytes() == second[:cut]


async def test_a_whole_line_without_its_newline_is_no_tear(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(await some_row("a"))
    with Journal(path) as journal:
        journal.append(await some_row("b"))
        assert journal.torn_bytes == 0
        assert len(list(journal.summaries())) == 2


async def test_a_torn_line_longer_than_a_block_is_found(tmp_path):
    path = tmp_path / "a.jsonl"
    row = await some_row("a")
    path.write_bytes(row + b"\n" + b'{"x":"' + b"y" * (3 * 2**20))
    with Journal(path) as journal:
        journal.append(row)
    assert path.read_bytes() == row + b"\n" + row + b"\n"


async def test_nothing_is_cut_before_something_is_written(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(await some_row("a") + b'\n{"torn')
    before = path.read_bytes()
    with Journal(path) as journal:
        assert journal.torn_bytes == 6
        assert len(list(journal.summaries())) == 1
        assert journal.foreign == []
    assert path.read_bytes() == before


def test_an_empty_file_that_was_there_stays(tmp_path):
    path = tmp_path / "a.jsonl"
    path.touch()
    with Journal(path):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.jsonl"]


async def test_half_a_line_on_a_full_disk_is_taken_back(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    row = await some_row("a")
    real = os.write

    def full(file, data):
        if len(data) <= 10:
            raise OSError(28, "No space left on device")
        return real(file, data[: len(data) - 10])

    with Journal(path) as journal:
        journal.append(row)
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(rm.StoreError, match="No space left"):
            journal.append(row)
        monkeypatch.undo()
        journal.append(row)
    assert path.read_bytes() == (row + b"\n") * 2


async def test_rows_of_others_stay_and_are_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"reward": 1}\n' + await some_row("a") + b"\n\x00garbage\n")
    with Journal(path) as journal:
        assert len(list(journal.summaries())) == 1
        assert journal.foreign == [1, 3]
    assert path.read_bytes().startswith(b'{"reward": 1}\n')


def test_a_second_writer_is_refused_and_told_who_the_first_is(tmp_path):
    path = tmp_path / "a.jsonl"
    program = textwrap.dedent(
        f"""
        import sys
        from pathlib import Path
        from rollmill.store.journal import Journal
        with Journal(Path({str(path)!r})):
            print("open", flush=True)
            sys.stdin.read()
        """
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        owner.stdout.readline()
        with pytest.raises(rm.ConfigError, match=f"written by another run .pid {owner.pid} on"), Journal(path):
            pass
        owner.kill()
        owner.communicate()
    with Journal(path):
        pass  # a dead owner's lock is nobody's


def test_an_output_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(rm.ConfigError, match="cannot be written"), Journal(tmp_path / "file" / "a.jsonl"):
        pass
    with pytest.raises(rm.ConfigError, match="cannot be written"), Journal(Path("/proc/none/a.jsonl")):
        pass


def test_a_run_that_recorded_nothing_leaves_nothing(tmp_path):
    with Journal(tmp_path / "a.jsonl"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_only_outputs_match_the_glob_of_outputs(tmp_path):
    assert run_folder(tmp_path / "rollouts_chunk_00.jsonl").name == "rollouts_chunk_00.run"
    assert not run_folder(tmp_path / "a.jsonl").match("*.jsonl")


async def test_a_full_disk_is_a_store_error(tmp_path):
    with Journal(tmp_path / "a.jsonl") as journal:
        full = os.open("/dev/full", os.O_WRONLY)
        real, journal._file = journal._file, full
        with pytest.raises(rm.StoreError, match="No space left"):
            journal.append(b"{}")
        journal._file = real
        os.close(full)
