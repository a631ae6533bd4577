"""The profile of a collection, of commands as people run them."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

SLOW = """
import asyncio
import time

import rollmill as rm


class Slow(rm.Environment):
    @rm.tool
    def burn(self) -> str:
        "Compute for a while."
        return burnt(0.005)

    @rm.reward
    async def patient(self) -> bool:
        await asyncio.sleep(0.02)
        return True

    @rm.reward(weight=0)
    def blocking(self) -> bool:
        time.sleep(0.02)
        return True


class Computed(Slow):
    @rm.reward(weight=0, cpu=True)
    def pondered(task, trajectory, snapshot) -> bool:
        return burnt(0.005) == "burnt"


class Verified(rm.Environment):
    async def verify(self, task, response) -> float:
        await asyncio.sleep(0.02)
        time.sleep(0.02)
        return 1.0


def burnt(seconds):
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass
    return "burnt"
"""
PROFILED = ("+profiling_enabled=true", "+profiling_results_dirpath=results/profiling")
ROLLOUTS = 12


def answer(body: dict) -> str | dict:
    """Calls the tool, and then answers."""
    if any(item.get("type") == "function_call_output" for item in body["input"]):
        return "done"
    return {"type": "function_call", "name": "burn", "arguments": "{}", "call_id": "call_1"}


@pytest.fixture
def collect(shell, serve_model):
    """Start a collection of a class of that file; its rollouts take a call of the tool each."""

    def start(kind: str = "Slow", *words: str, answer=answer, count: int = ROLLOUTS):
        (shell.folder / "slow.py").write_text(SLOW)
        rows = ({"responses_create_params": {"input": [{"role": "user", "content": str(n)}]}} for n in range(count))
        shell.write("tasks.jsonl", *rows)
        shell.env["OPENAI_API_KEY"] = "k"
        server = serve_model(answer)
        return shell.start(
            *("rollmill", "collect", f"slow.py:{kind}", "--model", "openai:served", "--base-url", server.url),
            *("--input", "tasks.jsonl", "--out", "a.jsonl", "--concurrency", "2", *words),
        )

    return start


class Page:
    """A profile as it was written: its stages with count and p50, and its functions with ncall, tsub and ttot."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text()
        stages, functions = self.text.split("\nCPU time by function")
        self.head, *lines = stages.split("\nstage ")
        rows = [[cell.strip() for cell in line.strip().split("  ") if cell.strip()] for line in lines[0].splitlines()]
        measured = [row for row in rows[1:] if len(row) >= 7]
        self.stages = {label: (int(count), _seconds(p50)) for label, count, p50, *_ in measured}
        self.held = {row[0]: _seconds(row[7]) for row in measured if len(row) == 8}
        rows = functions.partition("\nname ")[2].splitlines()[1:]
        self.functions = dict(_function(row) for row in rows if row)


_UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}


def _seconds(time: str) -> float:
    number, _, unit = time.partition(" ")
    return float(number) * _UNITS[unit]


def _function(row: str) -> tuple[str, tuple[int, float, float]]:
    name, calls, own, total, _ = row.rsplit(None, 4)
    return name.partition(" ")[0], (int(calls), float(own), float(total))


def ended(process, code: int = 0) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    return out


def page_of(shell, name: str = "slow_simple_agent") -> Page:
    folder = shell.folder / "results" / "profiling" / name
    assert [path.name for path in folder.iterdir()] == [f"{name}.log"]
    return Page(folder / f"{name}.log")


def test_waits_are_in_the_stages_and_computing_is_in_both_tables(shell, collect):
    out = ended(collect("Slow", *PROFILED))
    assert "\nProfile: results/profiling/slow_simple_agent/slow_simple_agent.log\n" in out
    page = page_of(shell)
    assert page.text.startswith(f"Profile of slow_simple_agent: {ROLLOUTS} rollouts in ")
    assert "\nChange first: " in page.text
    # A twentieth less, for that is how exact it is.
    for label, least in (("  verify patient", 0.019), ("  verify blocking", 0.019), ("tool burn", 0.00475)):
        count, p50 = page.stages[label.strip()]
        assert (count, p50 >= least) == (ROLLOUTS, True), (label, p50)
    assert page.stages["rollout"][0] == page.stages["verify"][0] == ROLLOUTS
    assert page.stages["model policy_model"][0] == page.stages["queue permit"][0] == 2 * ROLLOUTS
    # Of the two that slept, one held everything up.
    assert page.held["verify blocking"] >= 0.02 * ROLLOUTS
    assert page.held["tool burn"] >= 0.005 * ROLLOUTS
    assert page.held["verify patient"] < 0.02 * ROLLOUTS / 2
    # Whoever slept computed nothing.
    for name in ("Slow.patient", "Slow.blocking"):
        calls, _, total = page.functions[name]
        assert (calls, total < 0.02 * ROLLOUTS / 2) == (ROLLOUTS, True), (name, total)
    for name in ("Slow.burn", "burnt"):
        calls, _, total = page.functions[name]
        assert (calls, total >= 0.005 * ROLLOUTS) == (ROLLOUTS, True), (name, total)


def test_one_method_for_the_whole_verification(shell, collect):
    ended(collect("Verified", *PROFILED, answer="done"))
    page = page_of(shell, "verified_simple_agent")
    assert page.stages["verify"][0] == ROLLOUTS
    assert page.stages["verify"][1] >= 0.038
    calls, _, total = page.functions["Verified.verify"]
    assert (calls, total < 0.02 * ROLLOUTS) == (ROLLOUTS, True)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_and_processes_of_rewards_are_on_the_same_page(shell, collect, workers):
    ended(collect("Computed", *PROFILED, f"+workers={workers}"))
    page = page_of(shell, "computed_simple_agent")
    assert page.functions["Computed.pondered"][0] == ROLLOUTS
    assert page.functions["Slow.burn"][0] == ROLLOUTS
    assert page.functions["burnt"][0] == 2 * ROLLOUTS
    assert page.stages["verify pondered"][0] == page.stages["rollout"][0] == ROLLOUTS
    assert page.stages["store"][0] == ROLLOUTS
    processes = int(page.text.partition(" processes together")[0].rpartition(" ")[2])
    assert processes >= 2 * workers
    assert "before telling all" not in page.text


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("signals", [1, 2])
def test_after_ctrl_c_there_is_one_too(shell, collect, workers, signals):
    process = collect("Slow", *PROFILED, f"+workers={workers}", count=2000)
    output, deadline = shell.folder / "a.jsonl", time.monotonic() + 60
    while not (output.exists() and output.read_bytes().count(b"\n") >= 5):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    if signals > 1:
        while "Stopping" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
    assert "Profile: results/profiling/slow_simple_agent/slow_simple_agent.log\n" in ended(process, 130)
    page = page_of(shell)
    # Of a worker that is told to stop at once, what it can tell in a moment.
    if "before telling all" not in page.text:
        assert 5 <= page.stages["rollout"][0] < 2000
        assert page.functions["Slow.burn"][0] >= 5


def test_without_profiling_there_is_none(shell, collect):
    assert "Profile" not in ended(collect("Slow", "+profiling_results_dirpath=results/profiling"))
    assert not (shell.folder / "results").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (PROFILED[:1], "profiling_enabled=true: where does the profile go? Give +profiling_results_dirpath=FOLDER"),
        ((PROFILED[0], "+profiling_results_dirpath=slow.py"), "slow.py/slow_simple_agent cannot be made: Not a dir"),
        (("+profiling_enabled=maybe",), "profiling_enabled"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(collect, words, said):
    process = collect("Slow", *words)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_command_that_is_refused_leaves_the_last_profile_alone(shell, collect):
    ended(collect("Slow", *PROFILED))
    before = page_of(shell).text
    out, err = collect("Slow", *PROFILED, "+input_jsonl_fpath=missing.jsonl").communicate(timeout=60)
    assert "missing.jsonl" in err
    assert "Profile" not in out
    assert page_of(shell).text == before


def test_nemo_gyms_spelling_has_it_too(shell, serve_model):
    server = serve_model("\\boxed{B}")
    configs = "resources_servers/mcqa/configs/mcqa.yaml,responses_api_models/openai_model/configs/openai_model.yaml"
    done = shell.run(
        *("ng_collect_rollouts", f"+config_paths=[{configs}]", "+output_jsonl_fpath=a.jsonl", "+policy_api_key=k"),
        *(f"+policy_base_url={server.url}", "+policy_model_name=served", *PROFILED),
    )
    assert done.returncode == 0, done.stderr
    assert page_of(shell, "mcqa_simple_agent").stages["model policy_model"][0] == 5
    about = shell.run("ng_collect_rollouts", "--help").stdout
    assert "+profiling_enabled  (default false)" in about
    assert "+profiling_results_dirpath  (default null)" in about
