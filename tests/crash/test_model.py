"""Models that refuse, break off, fall silent or talk nonsense: every slot once, few retries, no failure rewarded."""

import itertools
import json
from collections import Counter

import pytest
from tests.crash.check import check, check_metrics, check_waits, look, retries_for_each_answer, violations
from tests.crash.command import Collect, wait_until
from tests.crash.script import Script

SHORT = {"connect_s": 1.0, "first_byte_s": 1.0, "idle_s": 1.0, "total_s": 3.0}
MOST_RETRIES = 1.2


def metrics(collect: Collect) -> dict:
    return json.loads((collect.run_folder / "metrics.json").read_bytes())


@pytest.mark.slow
def test_eight_thousand_rollouts_with_a_fifth_of_all_calls_faulty(tmp_path, serve, rows):
    planned = rows(2000)
    faults = {"429": 0.04, "429-seconds": 0.01, "500": 0.04, "503": 0.01, "reset": 0.04, "stall": 0.01, "silent": 0.01}
    garbage = {"malformed": 0.01, "truncated": 0.01, "schema": 0.01, "nan": 0.01}
    server = serve(turns=1, latency_s=0.02, spread=0.5, faults=faults | garbage, retry_after_s=0.5)
    collect = Collect(tmp_path, server.url, "--repeats", "4", concurrency=256, deadlines=SHORT)
    ended = collect.run(timeout=150)
    assert ended.code in (0, 1), ended.err
    found = check(collect.output, planned, 4)
    assert (ended.code == 1) == bool(found.finals)
    asked = server.stop()
    faulty = sum(not one.answered for one in asked)
    assert 0.15 < faulty / len(asked) < 0.25
    assert retries_for_each_answer(asked, found) <= MOST_RETRIES
    assert len(found.finals) <= 8000 * 0.03
    check_metrics(found, metrics(collect))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["429", "429-seconds", "429-date"])
def test_a_third_of_all_calls_is_too_many(tmp_path, serve, rows, fault):
    planned = rows(40)
    server = serve(turns=1, latency_s=0.02, faults={fault: 0.3}, retry_after_s=1.0)
    collect = Collect(tmp_path, server.url, concurrency=8)
    collect.finish()
    found = check(collect.output, planned)
    asked = server.stop()
    assert retries_for_each_answer(asked, found) <= MOST_RETRIES
    if fault != "429":
        assert check_waits(asked) > 0


@pytest.mark.slow
def test_a_rate_that_is_too_low_for_all_is_kept_to(tmp_path, serve, rows):
    planned = rows(200)
    server = serve(turns=1, rate=40, retry_after_s=0.5)
    collect = Collect(tmp_path, server.url, concurrency=64)
    collect.finish()
    found = check(collect.output, planned)
    asked = server.stop()
    assert retries_for_each_answer(asked, found) <= MOST_RETRIES
    assert check_waits(asked) > 0


def test_retries_do_not_come_in_waves(tmp_path, serve, rows):
    planned = rows(40)
    server = serve(turns=1, first={"503": 1})
    collect = Collect(tmp_path, server.url, concurrency=40)
    collect.finish()
    check(collect.output, planned)
    again = sorted(one.at for one in server.stop() if one.nth == 2)
    assert len(again) == 40
    waves = [list(wave) for _, wave in itertools.groupby(again, key=lambda at: int(at * 50))]
    assert max(map(len, waves)) <= 20


@pytest.mark.parametrize("fault", ["500", "502", "503", "504", "520"])
def test_a_server_in_trouble_costs_retries_and_no_rollout(tmp_path, serve, rows, fault):
    planned = rows(60)
    server = serve(turns=1, latency_s=0.01, seed=5, faults={fault: 0.1})
    collect = Collect(tmp_path, server.url, "+max_attempts=6", concurrency=16)
    collect.finish()
    found = check(collect.output, planned)
    assert not found.finals
    asked = server.stop()
    assert max(one.nth for one in asked) <= 6
    assert len(asked) == 60 + sum(not one.answered for one in asked)


@pytest.mark.parametrize(("fault", "code"), [("401", 2), ("404", 2), ("400", 2)])
def test_a_refusal_of_everything_stops_the_run_early_with_one_line(tmp_path, serve, rows, fault, code):
    planned = rows(300)
    server = serve(turns=1, latency_s=0.02, faults={fault: 1.0})
    collect = Collect(tmp_path, server.url, concurrency=8)
    ended = collect.run()
    assert ended.code == code, ended
    assert fault in ended.err
    assert "Traceback" not in ended.err
    assert len(server.asked()) <= 60
    assert not look(collect.output, finished=False).rewarded
    server.becomes(Script(turns=1))
    collect.finish("+retry_failed=true")
    check(collect.output, planned, retried=True)


@pytest.mark.slow
def test_a_server_that_restarts_is_waited_for(tmp_path, serve, rows):
    planned = rows(150)
    server = serve(latency_s=0.05, away=[(1.0, 4.0)])
    collect = Collect(tmp_path, server.url, concurrency=16)
    collect.finish()
    found = check(collect.output, planned)
    assert not found.finals
    server.stop()


@pytest.mark.slow
def test_a_server_that_is_gone_ends_the_run_and_the_same_command_goes_on(tmp_path, serve, rows):
    planned = rows(150)
    server = serve(latency_s=0.05, away=[(1.0, 8.0)])
    collect = Collect(tmp_path, server.url, "+outage_s=2", concurrency=16)
    ended = collect.run()
    assert ended.code == 1, ended
    assert "outage_s" in ended.err
    assert "refused" in ended.err
    assert violations(collect.output, planned, finished=False) == []
    some = look(collect.output).ended
    assert 0 < some < 150
    wait_until(lambda: collect.run("--limit", "1").code == 0, 30)
    collect.finish()
    check(collect.output, planned)


@pytest.mark.parametrize("url", ["http://no-such-host.invalid/v1", "http://127.0.0.1:9/v1", "https://127.0.0.1:9/v1"])
def test_a_server_that_never_was_is_said_at_once(tmp_path, rows, url):
    rows(3)
    ended = Collect(tmp_path, url).run(timeout=30)
    assert ended.code == 2
    assert url in ended.err
    assert not (tmp_path / "out.jsonl").exists()


def test_a_server_that_speaks_no_tls_is_said_at_once(tmp_path, serve, rows):
    rows(3)
    ended = Collect(tmp_path, serve().url.replace("http:", "https:")).run(timeout=30)
    assert ended.code == 2
    assert "cannot be reached" in ended.err


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["silent", "stall", "trickle"])
def test_an_answer_that_does_not_come_is_given_up(tmp_path, serve, rows, fault):
    planned = rows(60)
    server = serve(turns=1, faults={fault: 0.1})
    limits = SHORT | {"idle_s": 2.0} if fault == "trickle" else SHORT
    collect = Collect(tmp_path, server.url, "+max_attempts=5", concurrency=16, deadlines=limits)
    collect.finish()
    found = check(collect.output, planned)
    met = [one.number for one in server.stop() if one.said == fault]
    assert met
    longest = max(Counter(met).values())
    # The deadline of a call and the longest pause after it, so often as it was given up, and a call that was answered.
    allowed = longest * (SHORT["total_s"] + 16) + SHORT["total_s"]
    assert max(row["rollmill"]["seconds"]["play"] for row in found.rewarded) <= allowed


NONSENSE = ("malformed", "truncated", "schema", "nan", "reset")


def test_nonsense_is_a_failure_of_the_model_with_a_name_and_never_a_reward(tmp_path, serve, rows):
    planned = rows(100)
    server = serve(turns=1, faults=dict.fromkeys(NONSENSE, 0.1))
    collect = Collect(tmp_path, server.url, "+max_attempts=1", concurrency=4)
    assert collect.run().code == 1
    found = check(collect.output, planned)
    # A connection that was in use before may be reset between two requests: that one is made again at once.
    said = {one.number: one.said for one in server.stop()}
    answered = {number for number, last in said.items() if last == "200"}
    assert {row["number"] for row in found.rewarded} == answered
    assert {final["failure"]["where"] for final in found.finals} == {"model"}
    kinds = Counter(final["failure"]["kind"] for final in found.finals)
    broken_off = [fault in ("truncated", "reset") for number, fault in said.items() if number not in answered]
    assert kinds == {"transport": sum(broken_off), "malformed": len(broken_off) - sum(broken_off)}


def test_nonsense_is_asked_again(tmp_path, serve, rows):
    planned = rows(60)
    server = serve(faults=dict.fromkeys((*NONSENSE, "arguments", "surrogate"), 0.03))
    collect = Collect(tmp_path, server.url, "+max_attempts=6", concurrency=32)
    collect.finish()
    check(collect.output, planned)
    assert {one.said for one in server.stop()} >= {"malformed", "surrogate", "arguments"}


def test_an_empty_answer_is_an_answer_and_earns_nothing(tmp_path, serve, rows):
    planned = rows(40)
    server = serve(turns=1, faults={"empty": 0.3})
    collect = Collect(tmp_path, server.url, concurrency=4)
    collect.finish()
    found = check(collect.output, planned, honest_model=False)
    empty = {one.number for one in server.stop() if one.said == "empty"}
    assert {row["number"] for row in found.rewarded if row["reward"] == 0} == empty


@pytest.mark.slow
def test_a_body_without_end_is_cut_off(tmp_path, serve, rows):
    planned = rows(6)
    server = serve(turns=1, first={"huge": 1})
    collect = Collect(tmp_path, server.url, concurrency=2)
    collect.finish()
    check(collect.output, planned)
    assert sum(one.said == "huge" for one in server.stop()) == 6


def test_stragglers_hold_up_nobody(tmp_path, serve, rows):
    planned = rows(80)
    server = serve(turns=1, seed=4, latency_s=0.02, faults={"straggler": 0.05}, straggler_s=6.0)
    collect = Collect(tmp_path, server.url, concurrency=8)
    running = collect.start()
    wait_until(lambda: len(server.asked()) == 80, 30)
    stragglers = {one.number for one in server.asked() if one.said == "straggler"}
    assert 0 < len(stragglers) < 8
    running.wait_for_lines(80 - len(stragglers))
    there = {json.loads(line)["number"] for line in collect.lines()}
    assert not there & stragglers
    assert running.wait().code == 0
    check(collect.output, planned)
