"""Printing when nobody reads, in processes of their own: it is their standard output that goes."""

import os
import subprocess
import sys

import pytest

PRINTS = """
import os, sys
from rollmill.collection.streams import outlive_readers
before = (sys.stdout.encoding, sys.stdout.line_buffering)
outlive_readers()
assert before == (sys.stdout.encoding, sys.stdout.line_buffering)
for number in range(20_000):
    print("ä line", number)
    print("another", number, file=sys.stderr)
sys.stdout.flush()
os.write(int(sys.argv[1]), b"done")
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("redirect", ["| head -n 1", "2>&1 | head -n 1", ">/dev/full 2>&1", ">out 2>err"])
def test_who_prints_when_nobody_reads_goes_on(tmp_path, redirect, unbuffered):
    (tmp_path / "prints.py").write_text(PRINTS)
    reading, writing = os.pipe()
    done = subprocess.run(
        ("bash", "-c", f'"{sys.executable}" prints.py {writing} {redirect}'),
        cwd=tmp_path,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered, "PYTHONIOENCODING": "utf-8"},
        pass_fds=[writing],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writing)
    with os.fdopen(reading) as told:
        assert told.read() == "done", done
    assert "Traceback" not in done.stderr
    if redirect == ">out 2>err":
        assert (tmp_path / "out").read_text().splitlines() == [f"ä line {number}" for number in range(20_000)]
        assert len((tmp_path / "err").read_text().splitlines()) == 20_000
