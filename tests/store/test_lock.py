import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import rollmill as rm
from rollmill.store.folder import run_folder
from rollmill.store.lock import Lock, owner
from rollmill.store.store import Store


@contextmanager
def holding(path: Path) -> Iterator[subprocess.Popen]:
    """Another process that owns an output."""
    program = textwrap.dedent(
        f"""
        import sys
        from pathlib import Path
        from rollmill.store.store import Store
        with Store(Path({str(path)!r})) as store:
            store.open()
            print("open", flush=True)
            sys.stdin.read()
        """
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"open\n"
        yield process
        if process.poll() is None:
            process.communicate()


def test_a_second_writer_is_refused_and_told_who_the_first_is(tmp_path):
    path = tmp_path / "a.jsonl"
    with holding(path) as first:
        with (
            pytest.raises(rm.ConfigError, match=f"a.jsonl is being written by another run .pid {first.pid} on "),
            Store(path),
        ):
            pass
        assert owner(run_folder(path)).startswith(f"pid {first.pid} on ")
    assert owner(run_folder(path)) is None


def test_the_lock_of_an_owner_that_was_killed_is_nobody_s(tmp_path):
    path = tmp_path / "a.jsonl"
    with holding(path) as first:
        first.kill()
        first.wait()
        assert owner(run_folder(path)) is None
        with Store(path) as store:
            store.open()
            assert owner(run_folder(path)).startswith("pid ")


def test_nobody_owns_what_is_not_there(tmp_path):
    assert owner(tmp_path / "a.run") is None


def test_asking_for_the_owner_takes_the_lock_from_nobody(tmp_path):
    program = textwrap.dedent(
        f"""
        from pathlib import Path
        from rollmill.store.lock import owner
        print("asking", flush=True)
        while True:
            owner(Path({str(tmp_path)!r}))
        """
    )
    (tmp_path / "keep").touch()
    Lock(tmp_path, "output").release()
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as asking:
        asking.stdout.readline()
        for _ in range(200):
            Lock(tmp_path, "output").release()
        asking.kill()


def test_a_lock_can_be_released_twice(tmp_path):
    lock = Lock(tmp_path / "a.run", "output")
    lock.release()
    lock.release()
    assert list(tmp_path.iterdir()) == []
