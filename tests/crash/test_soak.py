"""A soak short enough for every day; `make chaos` has the long one."""

import pytest
from bench.server import Server
from tests.conftest import ROOT
from tests.crash.chaos import soak
from tests.crash.command import Collect
from tests.crash.preload import compiler
from tests.crash.rows import write_rows

TASKS = 150_000
MOST_GROWTH_MB = 10.0
"""For each 100,000: a tenth of a kilobyte for each rollout. So few cannot tell less from caches that fill."""


@pytest.mark.skipif(compiler() is None, reason="needs a C compiler")
@pytest.mark.slow
def test_memory_does_not_grow_with_what_is_collected(tmp_path):
    write_rows(tmp_path / "rows.jsonl", map(soak.row, range(TASKS)))
    environment = f"{ROOT / 'bench' / 'environments.py'}:Boxed"
    with Server(tmp_path) as server:
        collect = Collect(tmp_path, server.url("single-0"), environment=environment, concurrency=soak.CONCURRENCY)
        life = soak.Life(collect, server, 0)
    assert life.ended.code == 0, life.ended
    assert life.asked == TASKS
    soak.check_all(collect.output, TASKS, [])
    assert life.memory.slope(0.5 * TASKS / soak.UNIT, 0.98 * TASKS / soak.UNIT) < MOST_GROWTH_MB
    collect.output.unlink()
