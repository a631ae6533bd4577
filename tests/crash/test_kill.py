"""`kill -9` on the command: at any moment, at any write, again while it recovers."""

import random

import pytest
from tests.crash.check import check, check_kept, check_rework, look, violations
from tests.crash.command import Collect
from tests.crash.lives import check_death, survive
from tests.crash.preload import Disk, compiler

CONCURRENCY = 16
needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C compiler")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("output", ["out.jsonl", "out.jsonl.zst"])
def test_kills_at_any_moment_lose_and_double_nothing(tmp_path, serve, rows, seed, output):
    planned = rows(150)
    server = serve(latency_s=0.1, spread=0.5)
    collect = Collect(
        tmp_path, server.url, "--repeats", "2", "+progress_every_s=0.1", concurrency=CONCURRENCY, output=output
    )
    chance = random.Random(seed)
    kills = survive(collect, planned, 2, [chance.uniform(0.4, 1.9) for _ in range(3)])
    assert kills >= 2
    check_rework(server.stop(), look(collect.output), allowed=kills * CONCURRENCY)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("tenth", range(8))
def test_a_kill_at_any_write_leaves_what_can_be_finished(tmp_path, serve, rows, tenth):
    planned = rows(12)
    server = serve(turns=1)
    scout = Disk(tmp_path / "scout", tmp_path)
    Collect(tmp_path, server.url, output="scout/out.jsonl", concurrency=3).run(env=scout.traced())
    boundaries = len(scout.operations())
    disk = Disk(tmp_path / "disk", tmp_path)
    collect = Collect(tmp_path, server.url, output="disk/out.jsonl", concurrency=3)
    number = 1 + tenth * (boundaries - 1) // 8
    assert collect.run(env=disk.kills_at(number, half=tenth % 2 == 1)).code == -9
    assert violations(collect.output, planned, finished=False) == []
    before = collect.lines()
    collect.finish()
    check(collect.output, planned)
    check_kept(before, collect.lines())


@needs_compiler
@pytest.mark.slow
def test_kills_while_it_recovers_five_times_in_a_row(tmp_path, serve, rows):
    planned = rows(40)
    server = serve(turns=1, latency_s=0.02)
    disk = Disk(tmp_path / "disk", tmp_path)
    collect = Collect(tmp_path, server.url, output="disk/out.jsonl", concurrency=4)
    running = collect.start()
    running.wait_for_lines(20)
    running.kill()
    with collect.output.open("ab") as file:
        file.write(b'{"responses_create_params": {"input": "half a li')
    held = collect.lines()
    for number in (2, 4, 6, 9, 12):
        running = collect.start(env=disk.kills_at(number, half=number % 2 == 0))
        assert running.wait().code == -9, running.said
        held = check_death(collect, running, planned, 1, held)
    collect.finish()
    check(collect.output, planned)
    check_kept(held, collect.lines())


def test_a_killed_run_leaves_nobody_behind(tmp_path, serve, rows):
    planned = rows(60)
    collect = Collect(tmp_path, serve(latency_s=0.1).url, concurrency=8)
    running = collect.start()
    running.wait_for_lines(10)
    running.kill()
    assert collect.none_left(), collect.left_behind()
    collect.finish()
    check(collect.output, planned)
