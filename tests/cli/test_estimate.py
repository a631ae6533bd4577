"""`rollmill estimate` as a process: what a sample says of all of it."""

import json
import time

QUESTION = {"options": [{"A": "one"}, {"B": "two"}], "expected_answer": "B"}


def words(shell, server, *more: str) -> tuple[str, ...]:
    rows = ({"responses_create_params": {"input": f"Which, {number}?"}, **QUESTION} for number in range(400))
    shell.write("tasks.jsonl", *rows)
    flags = ("--model", "openai:served", "--base-url", server.url, "--input", "tasks.jsonl", "--repeats", "5")
    return ("rollmill", "estimate", "mcqa", *flags, *more)


def test_a_sample_says_what_all_slots_take_and_leaves_nothing(shell, serve_model):
    server = serve_model(lambda _: time.sleep(0.05) or "\\boxed{B}")
    prices = ("+prices.served.input=10", "+prices.served.output=100")
    said = shell.run(*words(shell, server, "--sample", "30", "--json", "--concurrency", "5", *prices))
    assert said.returncode == 0, said.stderr
    estimate = json.loads(said.stdout)
    assert (estimate["slots"], estimate["sampled"], estimate["failed"]) == (2000, 150, 0)
    assert (estimate["input_tokens"], estimate["output_tokens"]) == (2000 * 12, 2000 * 5)
    assert round(estimate["cost"], 6) == round(2000 * (12 * 10 + 5 * 100) / 1e6, 6)
    assert estimate["seconds"] == 2000 / estimate["rollouts_per_s"]
    assert estimate["in_flight"] == 5
    assert len(server.heard) == 150
    assert [path.name for path in shell.folder.iterdir()] == ["tasks.jsonl"]


def test_a_person_reads_it_with_what_is_not_known(shell, serve_model):
    said = shell.run(*words(shell, serve_model(), "--sample", "10", "--of", "1000000"))
    assert said.returncode == 0, said.stderr
    assert "for 1,000,000 slots" in said.stdout
    assert "tokens    12,000,000 in, 5,000,000 out (± 0 %)" in said.stdout
    assert "cost      unknown: give +prices.served.input=… and +prices.served.output=…" in said.stdout


def test_a_sample_that_fails_says_so(shell, serve_model):
    server = serve_model(lambda body: 500 if ", 1?" in str(body["input"]) else "\\boxed{B}")
    said = shell.run(*words(shell, server, "--sample", "3", "--repeats", "1", "+max_attempts=1"))
    assert said.returncode == 1
    assert "sample    3 rollouts, 1 failed" in said.stdout


def test_numbers_that_are_none_are_refused(shell, serve_model):
    said = shell.run(*words(shell, serve_model(), "--sample", "0"))
    assert (said.returncode, said.stderr) == (2, "rollmill: --sample and --of count from 1\n")
