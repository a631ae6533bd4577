"""The commands and the fragments of an environment in seed 000, on throughput; its scripts are in test_scripts.py."""

import json
import re
import statistics

import pytest
from tests.seeds.documents import block, needs_documents
from tests.seeds.place import Place, agent, row, served_at
from tests.seeds.terminal import Terminal

pytestmark = [pytest.mark.slow, needs_documents]

MEASURED = '''
import rollmill as rm


class Measured(rm.Environment):
    """Judges as a server of NeMo Gym does: a reward, and other numbers."""

    def verify(self, task, response):
        right = "yes" in response.output_text
        return {"reward": right, "accuracy": task["number"] % 2, "avg_tool_calls": self.trajectory.tool_calls}
'''


def test_progress_and_metrics_are_shown(place):
    (place.folder / "measured.py").write_text(MEASURED)
    # The command names neither a configuration nor an agent: env.yaml does, also where there are two.
    place.configure("measured.py:Measured", another_agent=agent("world"), agent_name="my_agent")
    place.write("tasks.jsonl", *map(row, range(9)))
    done = place.ran(block("000", "bash", "Automatically displays"))
    assert re.search(r"Collecting rollouts: 100%\|█+\| 9/9 \[\d\d:\d\d<\d\d:\d\d, +[\d.]+it/s", done.stderr)
    assert place.numbers("rollouts.jsonl") == list(range(9))
    assert {row["agent_ref"]["name"] for row in place.rows("rollouts.jsonl")} == {"my_agent"}
    # As in the block of metrics after it: every number of the verification, averaged.
    shown = json.loads(done.stdout[: done.stdout.index("}") + 1])
    wanted = json.loads(block("000", "json", "avg_tool_calls"))
    assert wanted.keys() <= shown.keys()
    for name in wanted:
        mean = statistics.fmean(row[name] for row in place.rows("rollouts.jsonl"))
        assert shown[name] == pytest.approx(mean, abs=1e-6)


def test_the_bar_says_how_many_rollouts_end_in_a_second(place):
    place.write("tasks.jsonl", *map(row, range(12)))
    with Terminal(place) as terminal:
        terminal.run(block("000", "bash", "Output shows"))
        bar = r"Collecting rollouts: 100%\|█+\| 12/12 \[\d\d:\d\d<\d\d:\d\d, +([\d.]+)it/s"
        assert float(terminal.until(bar)[1]) > 0
        terminal.until("Slots: 12 asked for = 12 rewarded")
    assert place.numbers("rollouts.jsonl") == list(range(12))


def interrupted(place: Place) -> tuple[str, set[int]]:
    """A run of 20 rows of 25 that was killed; the block that resumes it, in its numbers, and what had ended."""
    # The first is still running then, so that what has ended is not what comes first.
    place.write("input.jsonl", row(0) | {"gate": "open"}, *map(row, range(1, 25)))
    first = "ng_collect_rollouts +input_jsonl_fpath=input.jsonl +output_jsonl_fpath=rollouts.jsonl +limit=20"
    place.killed(f"{first} +num_samples_in_parallel=4", "rollouts.jsonl", rows=8)
    completed = place.lines("rollouts.jsonl")
    resume = block("000", "bash", "Check how many completed")
    for long, short in (("5432", completed), ("5433", completed + 1), ("4568", 20 - completed)):
        resume = resume.replace(long, str(short))
    return resume, set(place.numbers("rollouts.jsonl"))


def test_resuming_appends_and_plays_nothing_twice(place):
    resume, early = interrupted(place)
    # As printed, the comment ends the command, and `+limit=` is taken for another.
    corrected = resume.replace("  # Appends automatically\n", " \\\n")
    assert corrected != resume
    done = place.ran(corrected)
    assert done.stdout.split()[:2] == [str(len(early)), "rollouts.jsonl"]
    assert 0 not in early
    assert place.numbers("rollouts.jsonl") == sorted(early | set(range(len(early), 20)))
    assert "Owed of an earlier input" in done.stdout
    (place.folder / "open").touch()
    place.ran("ng_collect_rollouts +input_jsonl_fpath=input.jsonl +output_jsonl_fpath=rollouts.jsonl +limit=20")
    assert place.numbers("rollouts.jsonl") == list(range(20))


def test_resuming_as_it_is_printed_loses_nothing_but_the_limit(place):
    resume, early = interrupted(place)
    with place.bash(resume) as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == 127
    assert re.search(r"\+limit=\d+: command not found", err)
    assert place.numbers("rollouts.jsonl") == sorted(early | set(range(len(early), 25)))


def test_parameters_are_overridden_for_every_row(place, serve_model):
    server = serve_model("yes")
    place.configure(policy=served_at(server.url))
    asked = [row(number) for number in range(4)]
    asked[1]["responses_create_params"]["max_output_tokens"] = 64
    asked[2]["responses_create_params"]["temperature"] = 0.3
    place.write("tasks.jsonl", *asked)
    place.ran(block("000", "bash", "max_output_tokens"))
    assert [body["max_output_tokens"] for body in server.heard] == [512] * 4
    # Merged, as in the line of Python after it: what else a row says of its parameters stays.
    assert sorted(body.get("temperature", 0) for body in server.heard) == [0, 0, 0, 0.3]
    recorded = place.rows("rollouts.jsonl")
    assert {row["responses_create_params"]["max_output_tokens"] for row in recorded} == {512}


def test_a_benchmark_is_timed(place):
    place.write("tasks.jsonl", *map(row, range(15)))
    done = place.ran(block("000", "bash", "Quick benchmark").replace("+limit=100", "+limit=10"))
    assert place.numbers("test_rollouts.jsonl") == list(range(10))
    assert re.search(r"^real\t\d+m[\d.]+s$", done.stderr, re.MULTILINE)


# Environments whose `verify` is written as in the tabs on verification.

CACHED = """
import rollmill as rm

result = "yes"


def compute_reward(data, response):
    return {{"reward": data in response.output_text, "lookups": expensive_lookup.cache_info().misses}}


{code}

class Cached(rm.Environment):
    verify = verify
"""

FAST = """
import rollmill as rm


def quick_heuristic(response):
    return 0.5 * ("yes" in response.output_text)


def precise_verification(response):
    return 1.0 * (response.output_text == "yes")


{code}

class Fast(rm.Environment):
    verify = verify
"""


def test_lookups_are_cached(place):
    (place.folder / "cached.py").write_text(CACHED.format(code=block("000", "python", "lru_cache")))
    place.configure("cached.py:Cached")
    place.write("tasks.jsonl", *(row(number) | {"key": f"k{number % 3}"} for number in range(12)))
    place.ran("ng_collect_rollouts +input_jsonl_fpath=tasks.jsonl +output_jsonl_fpath=rollouts.jsonl")
    rows = place.rows("rollouts.jsonl")
    assert [row["reward"] for row in rows] == [1.0] * 12
    assert max(row["lookups"] for row in rows) == 3


@pytest.mark.parametrize(("fields", "reward"), [({}, 1.0), ({"fast_mode": False}, 1.0), ({"fast_mode": True}, 0.5)])
def test_a_field_of_the_configuration_makes_verification_fast(place, fields, reward):
    (place.folder / "fast.py").write_text(FAST.format(code=block("000", "python", "fast_mode")))
    place.configure(world={"resources_servers": {f"{place.folder}/fast.py:Fast": fields}})
    place.write("tasks.jsonl", *map(row, range(3)))
    place.ran("ng_collect_rollouts +input_jsonl_fpath=tasks.jsonl +output_jsonl_fpath=rollouts.jsonl")
    assert [row["reward"] for row in place.rows("rollouts.jsonl")] == [reward] * 3
