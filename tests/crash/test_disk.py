"""Disks that are full, fail, or lose their power."""

import errno
import os
import time

import pytest
from tests.crash.check import check, check_kept, look, violations
from tests.crash.command import Collect, acknowledged
from tests.crash.preload import Disk, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C compiler")


@pytest.fixture
def disk(tmp_path):
    return Disk(tmp_path / "disk", tmp_path)


def collection(disk: Disk, url: str, *words: str) -> Collect:
    return Collect(disk.folder.parent, url, *words, output="disk/out.jsonl", concurrency=8)


@pytest.mark.slow
@pytest.mark.parametrize("number", [30, 60])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_disk_that_takes_no_more_stops_the_run_clearly_and_spoils_nothing(disk, serve, rows, number, error):
    planned = rows(60)
    collect = collection(disk, serve(turns=1, latency_s=0.05).url)
    ended = collect.run(env=disk.fails_at(number, error), timeout=30)
    assert ended.code == 1, ended
    assert os.strerror(error) in ended.err or "disk" in ended.err
    assert "Traceback" not in ended.err
    before = collect.lines()
    assert violations(collect.output, planned, finished=False) == []
    disk.freed()
    collect.finish()
    check(collect.output, planned)
    check_kept(before, collect.lines())


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["", "index"])
def test_what_was_shown_as_done_survives_a_power_cut(disk, serve, rows, keep):
    planned = rows(120)
    collect = collection(disk, serve(turns=1, latency_s=0.2).url, "+durability=power", "+progress_every_s=0.1")
    running = collect.start(env=disk.shadowed())
    running.wait_for_lines(60)
    running.kill()
    disk.lose_power(keep=keep)
    there = look(collect.output, finished=False)
    assert there.ended >= acknowledged(running.said) > 0
    assert violations(collect.output, planned, finished=False) == []
    before = collect.lines()
    collect.finish()
    check(collect.output, planned)
    check_kept(before, collect.lines())


@pytest.mark.slow
def test_by_default_a_power_cut_costs_the_last_moment(disk, serve, rows):
    planned = rows(120)
    collect = collection(disk, serve(turns=1, latency_s=0.2).url)
    running = collect.start(env=disk.shadowed())
    running.wait_for_lines(30)
    some = collect.lines()
    time.sleep(1.5)
    running.kill()
    disk.lose_power()
    check_kept(some, collect.lines())
    collect.finish()
    check(collect.output, planned)


@pytest.mark.slow
def test_a_power_cut_at_every_stage_of_the_beginning_can_be_gone_on_from(disk, serve, rows):
    planned = rows(10)
    collect = collection(disk, serve(turns=1).url, "+durability=power")
    for number in (4, 12, 20, 28):
        ended = collect.run(env=disk.shadowed(KILL_AT=number))
        disk.lose_power()
        if ended.code == 0:
            break
    collect.finish()
    check(collect.output, planned)
