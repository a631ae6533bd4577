"""Profiles of services: what waits and what computes stand in the right tables, with the right times."""

import re
import urllib.request

import pytest

pytestmark = pytest.mark.slow

WORLD = '''
import asyncio
import time

import rollmill as rm


class Slow(rm.Environment):
    """A verdict that waits 20 ms, and a tool that computes for 5."""

    verification = "stateless"

    @rm.tool
    def burn(self) -> str:
        """Compute."""
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass
        return "burnt"

    async def verify(self, task, response):
        await asyncio.sleep(0.02)
        return 1.0
'''
CONFIGURATION = """\
slow:
  resources_servers:
    {folder}/world.py:Slow: {{}}
slow_agent:
  responses_api_agents:
    simple_agent:
      resources_server: {{type: resources_servers, name: slow}}
      model_server: {{type: responses_api_models, name: policy_model}}
policy_model:
  responses_api_models:
    scripted_model:
      lines: [{{type: function_call, name: burn, arguments: {{}}}}, done]
"""
ROLLOUTS = 60
UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}


def seconds(text: str) -> float:
    number, unit = text.split()
    return float(number.replace(",", "")) * UNITS[unit]


def stage(page: str, label: str) -> list[str]:
    """The cells of a stage: count, p50, p95, max, total, share, held."""
    line = next(line for line in page.splitlines() if line.strip().startswith(f"{label}  "))
    return re.split(r"  +", line.strip())[1:]


def function(page: str, name: str) -> list[float]:
    """ncall, tsub, ttot and tavg."""
    line = next(line for line in page.splitlines() if line.startswith(f"{name} "))
    return [float(word) for word in line.split()[-4:]]


def test_a_wait_and_a_computation_are_told_apart(shell, serving):
    (shell.folder / "world.py").write_text(WORLD)
    (shell.folder / "slow.yaml").write_text(CONFIGURATION.format(folder=shell.folder))
    shell.write("tasks.jsonl", *({"responses_create_params": {"input": str(n)}} for n in range(ROLLOUTS)))
    profile = ("+profiling_enabled=true", "+profiling_results_dirpath=results/profiling")
    with serving("+config_paths=[slow.yaml]", *profile) as services:
        given = ("+agent_name=slow_agent", "+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=a.jsonl")
        done = shell.run("ng_collect_rollouts", services.head, *given, "+num_samples_in_parallel=1")
        assert done.returncode == 0, done.stderr
        with urllib.request.urlopen(f"{services.url('slow')}/stats") as answer:
            asked = answer.read().decode()
    folder = shell.folder / "results/profiling"
    pages = {path.stem: path.read_text() for path in folder.glob("*/*.log")}
    assert {str(path.relative_to(folder)) for path in folder.glob("*/*.log")} == {
        "Slow___slow/slow.log",
        "ToolAgent___slow_agent/slow_agent.log",
        "Scripted___policy_model/policy_model.log",
    }
    for page in (pages["slow"], asked):
        verify, burn = stage(page, "verify"), stage(page, "tool burn")
        assert (verify[0], burn[0]) == (str(ROLLOUTS), str(ROLLOUTS))
        assert 0.019 <= seconds(verify[1]) < 0.2
        assert 0.0047 <= seconds(burn[1]) < 0.1
        assert "Change first: verification" in page
        calls, own, whole, _ = function(page, "Slow.burn")
        assert calls == ROLLOUTS
        assert ROLLOUTS * 0.005 <= whole < ROLLOUTS * 0.02
        assert 0 < own <= whole
        # What waits takes no CPU.
        assert function(page, "Slow.verify")[2] < ROLLOUTS * 0.002
    # The agent, in a process of its own, sees both from outside, and its model.
    for label in ("tool burn", "verify", "model policy_model"):
        assert int(stage(pages["slow_agent"], label)[0].replace(",", "")) >= ROLLOUTS


def test_a_profile_needs_a_folder(shell):
    done = shell.run("ng_run", "+config_paths=[resources_servers/mcqa/configs/mcqa.yaml]", "+profiling_enabled=true")
    assert done.returncode == 2
