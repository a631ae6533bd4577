"""One writer for an output, whoever else comes; few file descriptors; a wall clock that jumps."""

import shlex
import subprocess

import pytest
from tests.conftest import BIN
from tests.crash.check import check, check_kept
from tests.crash.command import Collect
from tests.crash.preload import compiler, stepping_clock


def test_a_second_collector_is_refused_and_names_the_first(tmp_path, serve, rows):
    planned = rows(60)
    collect = Collect(tmp_path, serve(latency_s=0.1).url, concurrency=8)
    first = collect.start()
    first.wait_for_lines(5)
    ended = collect.run()
    assert ended.code == 2
    assert f"pid {first.pid}" in ended.err
    assert first.wait().code == 0
    check(collect.output, planned)


def test_of_several_that_start_together_one_plays(tmp_path, serve, rows):
    planned = rows(40)
    server = serve(turns=1, latency_s=0.2)
    collect = Collect(tmp_path, server.url, concurrency=4)
    running = [collect.start() for _ in range(4)]
    codes = sorted(one.wait().code for one in running)
    assert codes == [0, 2, 2, 2]
    check(collect.output, planned)
    assert len(server.stop()) == 40


def test_the_lock_of_a_killed_owner_is_taken_over(tmp_path, serve, rows):
    planned = rows(60)
    collect = Collect(tmp_path, serve(latency_s=0.1).url, concurrency=8)
    first = collect.start()
    first.wait_for_lines(5)
    held = collect.lines()
    first.kill()
    collect.finish()
    check(collect.output, planned)
    check_kept(held, collect.lines())


def test_two_outputs_in_one_folder_do_not_meet(tmp_path, serve, rows):
    planned = rows(30)
    server = serve(turns=1, latency_s=0.05)
    collects = [Collect(tmp_path, server.url, output=f"{name}.jsonl", concurrency=4) for name in "ab"]
    running = [collect.start() for collect in collects]
    assert [one.wait().code for one in running] == [0, 0]
    for collect in collects:
        check(collect.output, planned)


@pytest.mark.slow
def test_few_file_descriptors_are_lived_with_or_named(tmp_path, serve, rows):
    planned = rows(1500)
    collect = Collect(tmp_path, serve(turns=1, latency_s=0.5).url, concurrency=1000)
    words = shlex.join([str(BIN / collect.words[0]), *collect.words[1:]])
    done = subprocess.run(
        ("bash", "-c", f"ulimit -n 256; exec {words}"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr
    if done.returncode == 2:
        assert "256" in done.stderr
    else:
        assert done.returncode == 0, done.stderr[-3000:]
        assert not check(collect.output, planned).finals


@pytest.mark.skipif(compiler() is None, reason="needs a C compiler")
@pytest.mark.slow
def test_a_wall_clock_that_jumps_moves_no_deadline(tmp_path, serve, rows):
    planned = rows(80)
    server = serve(latency_s=0.1, faults={"503": 0.05, "429-seconds": 0.03, "silent": 0.02}, retry_after_s=0.5)
    limits = {"first_byte_s": 1.0, "idle_s": 1.0, "total_s": 3.0}
    collect = Collect(tmp_path, server.url, "+max_attempts=6", concurrency=16, deadlines=limits)
    running = collect.start(env=stepping_clock(3600, 0.4))
    running.wait_for_lines(30)
    running.kill()
    assert collect.run(env=stepping_clock(-3600, 0.4)).code == 0
    found = check(collect.output, planned)
    assert not found.finals
    assert max(row["rollmill"]["seconds"]["play"] for row in found.rewarded) < 600
    assert min(min(row["rollmill"]["seconds"].values()) for row in found.rewarded) >= 0
