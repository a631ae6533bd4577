"""The parts that the benchmark measures with are right; how fast anything is, nobody asks here."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from bench import measure, report, tasks
from bench.server import Server

BENCH = Path(__file__).parents[1] / "bench"
ROLLMILL = Path(sys.executable).with_name("rollmill")
CALLED = '{"synonym": "Blur"}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(autouse=True)
def _nothing_asked(server: Server) -> None:
    server.reset()


def ask(url: str, **body: Any) -> Any:
    with urlopen(Request(url, json.dumps(body).encode())) as answer:
        return json.loads(answer.read())


def test_answers_in_one_message(server: Server):
    message = ask(f"{server.url('single-0')}/responses", input="?")["output"][0]
    assert message["content"][0]["text"].endswith("\\boxed{B}.")


def test_answers_chat_completions(server: Server):
    choice = ask(f"{server.url('single.p2000-0')}/chat/completions", messages=[])["choices"][0]
    assert choice["message"]["content"].startswith("x" * 2000)
    assert choice["finish_reason"] == "stop"


def test_streams_chat_completions_when_asked_to(server: Server):
    url = f"{server.url('tools1.look-0')}/chat/completions"
    with urlopen(Request(url, b'{"stream": true}')) as answer:
        events = [line.removeprefix(b"data: ").strip() for line in answer if line.strip()]
    first, second, usage = map(json.loads, events[:-1])
    assert first["choices"][0]["delta"]["tool_calls"][0]["function"] == {"name": "look", "arguments": CALLED}
    assert second["choices"][0]["finish_reason"] == "tool_calls"
    assert usage["usage"]["total_tokens"] == 360
    assert events[-1] == b"[DONE]"


@pytest.mark.parametrize("outputs", range(5))
def test_calls_a_tool_until_it_has_that_many_outputs(server: Server, outputs: int):
    said = [{"type": "function_call_output", "call_id": "1", "output": "2"}] * outputs
    item = ask(f"{server.url('tools4.look-0')}/responses", input=said)["output"][0]
    assert item["type"] == ("function_call" if outputs < 4 else "message")
    if outputs < 4:
        assert (item["name"], item["arguments"]) == ("look", CALLED)


def test_answers_requests_of_one_connection_in_their_order(server: Server):
    def request(script: str) -> bytes:
        return f"POST /{script}/v1/responses HTTP/1.1\r\nContent-Length: 2\r\n\r\n{{}}".encode()

    with socket.create_connection(("127.0.0.1", int(server.root.rpartition(":")[2]))) as connection:
        late = request("tools1.late-20")
        connection.sendall(late[:9])
        connection.sendall(late[9:] + request("tools1.soon-0") + b"GET /stats HTTP/1.1\r\nConnection: close\r\n\r\n")
        answers = b"".join(iter(lambda: connection.recv(65536), b""))
    assert 0 < answers.index(b'"late"') < answers.index(b'"soon"') < answers.index(b'"requests":2')


def test_refuses_what_is_no_script_and_says_so(server: Server):
    with pytest.raises(HTTPError, match="404") as refused:
        ask(f"{server.url('singel-0')}/responses", input="?")
    refused.value.close()
    assert server.stats().by_status == {"404": 1}


def test_questions_for_models_count_as_no_calls(server: Server):
    with urlopen(f"{server.url('single-0')}/models") as answer:
        assert json.loads(answer.read())["data"][0]["id"] == "mock"
    assert server.stats().requests == 0
    assert server.stats().first_request == 0


def test_leaves_with_the_one_who_started_it(tmp_path: Path):
    with Server(tmp_path) as server:
        process = server.process
    assert process.returncode == 0


@pytest.mark.parametrize(("kind", "least", "most"), [("single", 1_900, 2_200), ("tools", 10_000, 12_000)])
def test_tasks_differ_and_are_as_large_as_they_say(kind: tasks.Kind, least: int, most: int):
    rows = list(tasks.rows(kind, 50))
    assert len(set(rows)) == 50
    assert all(least < len(row) < most for row in rows)


# By the kind of its tasks: what the model says, where it is played, and how many model calls a rollout takes.
WORK = {"single": ("single-0", "Boxed", 1), "tools": ("tools4.get_synonym_value-0", "Synonyms", 5)}


@pytest.mark.parametrize("who", ["aiohttp", "raw", "rollmill"])
@pytest.mark.parametrize("kind", WORK)
def test_the_floor_and_the_command_do_the_same_work(server: Server, tmp_path: Path, who: str, kind: tasks.Kind):
    script, environment, calls = WORK[kind]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    tasks.write(kind, 30, source)
    if who == "rollmill":
        command = [ROLLMILL, "collect", f"{BENCH / 'environments.py'}:{environment}", "--model", "openai:mock"]
    else:
        command = [sys.executable, BENCH / "floor.py", who]
    given = ["--base-url", server.url(script), "--input", source, "--limit", "20", "--concurrency", "4", "--out", out]
    measure.run([*command, *given], tmp_path / "log")

    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(row["uuid"] for row in rows) == sorted(f"{kind}-{number}" for number in range(20))
    assert {row["reward"] for row in rows} == {1.0}
    assert {len(row["response"]["output"]) for row in rows} == {2 * calls - 1}
    if calls > 1:
        assert json.loads(rows[0]["response"]["output"][1]["output"]) == {"synonym_value": sum(map(ord, "Blur"))}
    assert server.stats().by_status == {"200": 20 * calls}


def test_a_command_that_fails_is_no_measurement(tmp_path: Path):
    with pytest.raises(measure.MeasurementError, match=r"exit code 3 of .*\n.*what it said"):
        measure.run([sys.executable, "-c", "print('what it said'); exit(3)"], tmp_path / "log")


def test_what_starting_takes_falls_out():
    small, large = measure.Cost(wall_s=3, cpu_s=2.5, began=0), measure.Cost(wall_s=5, cpu_s=3.5, began=9)
    assert measure.rate((100, small), (300, large)) == measure.Rate(per_s=100, cpu_ms=5, start_s=2)
    with pytest.raises(measure.MeasurementError, match="play more"):
        measure.rate((100, large), (300, small))


def test_memory_that_grows_has_a_slope():
    watch = measure.MemoryWatch(lambda: 0.0)
    watch.samples += [measure.Sample(progress, 50 + 3 * progress, peak_mb=99) for progress in (1, 2, 4, 8)]
    watch.samples.append(measure.Sample(progress=0, memory_mb=1, peak_mb=1))
    assert watch.slope(1, 9) == pytest.approx(3)
    assert watch.peak_mb == 99
    with pytest.raises(measure.MeasurementError, match="play more"):
        watch.slope(3, 9)


def test_memory_of_children_counts(tmp_path: Path):
    hold = "import sys; x = bytearray(b'x' * 60_000_000); sys.stdin.read()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE) as process:
        watch = measure.MemoryWatch(lambda: 0.0)
        with watch.of(process.pid):
            while not watch.samples or watch.peak_mb < 60:
                assert process.poll() is None
                time.sleep(0.05)


def test_a_bar_is_met_from_one_side_by_the_median():
    least = report.Bar("speed", [0.6, 0.7, 0.9], 0.7, at_least=True)
    most = report.Bar("memory", [310, 290, 320], 300, unit=" MB")
    assert least.row() == ["speed", "0.7", "0.6 to 0.9", "≥ 0.7", "PASS"]
    assert most.row() == ["memory", "310 MB", "290 to 320", "≤ 300 MB", "MISSED"]


def test_a_section_takes_the_place_of_its_last_one_only(tmp_path: Path):
    path, order = tmp_path / "results.md", ["first", "second"]
    for part, value in (("second", 1.25), ("first", 2.5), ("second", 3.75)):
        section = report.Section(part, "About it.", [report.Bar("bar", [value], 2)], ["", "x"], [["row", "1"]])
        report.write(section, path, order)
    text = path.read_text()
    assert text.count("## ") == 2
    assert text.index("## first") < text.index("| bar | 2.5 |") < text.index("## second") < text.index("| bar | 3.75 |")
    assert "1.25" not in text
