"""The disk and the clock that misbehave, themselves."""

import itertools
import json
import subprocess
import sys

import pytest
from tests.crash.preload import Disk, compiler, stepping_clock

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C compiler")

PROGRAM = """
import os, sys
from pathlib import Path
file = os.open("a", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(file, b"one")
os.fsync(file)
os.write(file, b"two")
Path("b.part").write_bytes(b"new")
os.replace("b.part", "b")
os.truncate("a", 5)
"""


@pytest.fixture
def disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    return Disk(folder, tmp_path)


def play(disk: Disk, env: dict, program: str = PROGRAM) -> subprocess.CompletedProcess:
    words = (sys.executable, "-I", "-S", "-c", program)
    return subprocess.run(words, cwd=disk.folder, env=env, capture_output=True, text=True, check=False)


def content(disk: Disk) -> dict[str, str]:
    return {path.name: path.read_text() for path in disk.folder.iterdir()}


def test_operations_are_traced(disk):
    assert play(disk, disk.traced()).returncode == 0
    assert [(one.kind, one.path) for one in disk.operations()] == [
        *[("open", "a"), ("write", "a"), ("fsync", "a"), ("write", "a")],
        *[("open", "b.part"), ("write", "b.part"), ("rename", "b"), ("truncate", "a")],
    ]


@pytest.mark.parametrize(
    ("number", "half", "left"),
    [
        (1, False, {}),
        (2, False, {"a": ""}),
        (2, True, {"a": "o"}),
        (4, True, {"a": "onet"}),
        (7, False, {"a": "onetwo", "b.part": "new"}),
        (8, False, {"a": "onetwo", "b": "new"}),
    ],
)
def test_the_process_dies_before_an_operation_or_in_it(disk, number, half, left):
    assert play(disk, disk.kills_at(number, half=half)).returncode == -9
    assert content(disk) == left


def test_writes_fail_until_there_is_room_again(disk):
    done = play(disk, disk.fails_at(4))
    assert "No space left on device" in done.stderr
    assert content(disk) == {"a": "one"}
    env = disk.fails_at(4)
    disk.freed()
    assert play(disk, env).returncode == 0


def test_what_was_not_synced_is_gone_with_the_power(disk):
    assert play(disk, disk.shadowed()).returncode == 0
    assert content(disk) == {"a": "onetw", "b": "new"}
    disk.lose_power()
    assert content(disk) == {"a": "one", "b": ""}


def test_what_the_process_starts_is_left_alone(disk):
    program = "import os, subprocess, sys; print(os.environ.get('LD_PRELOAD'), os.environ.get('DISK_FOLDER'))"
    assert play(disk, disk.kills_at(1), program).stdout == "None None\n"


def test_the_wall_clock_steps_and_the_monotonic_clock_does_not():
    program = """
import json, time
print(json.dumps([(time.time(), time.monotonic()) for _ in range(45) if not time.sleep(0.01)]))
"""
    words = (sys.executable, "-I", "-S", "-c", program)
    done = subprocess.run(words, env=stepping_clock(3600, 0.1), capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    steps = [later[0] - earlier[0] for earlier, later in itertools.pairwise(seen)]
    assert max(steps) > 3000
    assert min(steps) < -3000
    assert all(earlier[1] < later[1] for earlier, later in itertools.pairwise(seen))
