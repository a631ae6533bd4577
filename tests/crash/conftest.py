"""What the crash tests share: a model server that is stopped again, and a folder with rows."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.crash.rows import errands, write_rows
from tests.crash.served import Served, served

if sys.platform != "linux":
    # They look into /proc and preload libraries.
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start the model server with this script."""
    with ExitStack() as stack:
        yield lambda **script: stack.enter_context(served(tmp_path, **script))


@pytest.fixture
def rows(tmp_path: Path) -> Callable[..., list[dict]]:
    """Write `rows.jsonl` with so many errands, and give them."""

    def write(count: int, first: int = 0) -> list[dict]:
        made = errands(count, first)
        write_rows(tmp_path / "rows.jsonl", made)
        return made

    return write
