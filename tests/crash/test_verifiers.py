"""Rewards that crash, hang, fork, shout or return nonsense: their slots fail, and nobody else's."""

import json
from collections import Counter

import pytest
from tests.crash.check import check
from tests.crash.command import HERE, Collect, wait_until
from tests.crash.rows import errand, write_rows

NONSENSE = ("raises", "exits", "nan", "infinite", "nothing", "text")
RAGE = ("leaves", "segfaults", "is killed", "eats memory", "loops in C", "sleeps deaf", "forks")


@pytest.fixture
def judged(tmp_path, serve):
    """Play errands of these tempers, four times as many of a kind one among them."""

    def play(environment: str, tempers: tuple[str, ...], *words: str):
        rows = [errand(number, temper=temper) for number, temper in enumerate([*tempers, *["kind"] * 4 * len(tempers)])]
        write_rows(tmp_path / "rows.jsonl", rows)
        server = serve(turns=1, latency_s=0.05)
        name = f"{HERE / 'verifiers.py'}:{environment}"
        collect = Collect(tmp_path, server.url, *words, environment=name, concurrency=8)
        return collect, rows, collect.run(timeout=120)

    return play


def only_these_failed(collect: Collect, rows: list[dict], tempers: tuple[str, ...]) -> dict[str, dict]:
    """The failure of each temper; every other row is rewarded."""
    found = check(collect.output, rows)
    numbers = {row["number"]: row["temper"] for row in rows}
    assert Counter(row["temper"] for row in found.rewarded) == {"kind": len(rows) - len(tempers)}
    tasks = {final["slot"]["task_index"]: final["failure"] for final in found.finals}
    assert {numbers[index] for index in tasks} == set(tempers)
    assert {failure["where"] for failure in tasks.values()} == {"verifier"}
    return {numbers[index]: failure for index, failure in tasks.items()}


@pytest.mark.parametrize("environment", ["Live", "Pure"])
def test_rewards_that_are_no_numbers_are_failures_and_never_averaged(judged, environment):
    collect, rows, ended = judged(environment, NONSENSE)
    assert ended.code == 1
    failures = only_these_failed(collect, rows, NONSENSE)
    assert "nan" in failures["nan"]["detail"]
    assert "inf" in failures["infinite"]["detail"]
    assert "nothing to divide by" in failures["raises"]["detail"]
    metrics = json.loads((collect.run_folder / "metrics.json").read_bytes())
    assert metrics["over"]["reward"] == len(rows) - len(NONSENSE)
    assert 0 < metrics["mean"]["reward"] < 1


@pytest.mark.slow
def test_rewards_that_rage_are_killed_with_all_that_they_started(judged):
    collect, rows, ended = judged("Pure", RAGE)
    assert ended.code == 1
    failures = only_these_failed(collect, rows, RAGE)
    assert failures["loops in C"]["kind"] == failures["sleeps deaf"]["kind"] == "timeout"
    assert failures["segfaults"]["kind"] == failures["is killed"]["kind"] == "crash"
    assert collect.none_left(), collect.left_behind()


def test_rewards_may_print_as_much_as_they_like(judged):
    collect, rows, ended = judged("Pure", ("talks", "talks"))
    assert ended.code == 0
    assert len(check(collect.output, rows).rewarded) == 10
    assert "value" not in ended.out + ended.err


@pytest.mark.slow
def test_a_kill_leaves_no_reward_computing(tmp_path, serve):
    rows = [errand(number, temper="loops in C") for number in range(3)]
    write_rows(tmp_path / "rows.jsonl", rows)
    name = f"{HERE / 'verifiers.py'}:Pure"
    collect = Collect(tmp_path, serve(turns=1).url, environment=name)
    running = collect.start()
    wait_until(lambda: len(collect.left_behind()) >= 2, 30)
    running.kill()
    assert collect.none_left(15), collect.left_behind()
