"""The page: what to change in a sentence, the stages, the functions."""

from __future__ import annotations

import pytest

from rollmill.profiling.functions import Function
from rollmill.profiling.page import page
from rollmill.profiling.profile import Measured
from rollmill.profiling.spans import FOR_A_PROCESS, Spans

PLAYED = {
    ("rollout", ""): 10.0,
    ("setup", ""): 0.1,
    ("play", ""): 6.0,
    ("queue", "permit"): 0.5,
    ("queue", "begin"): 0.1,
    ("model", "policy"): 4.0,
    ("tools", "look"): 0.6,
    ("tools", "take"): 0.3,
    ("verify", ""): 3.0,
    ("verify", "right"): 1.0,
    ("verify", "polite"): 1.2,
    ("store", ""): 0.1,
}


def measured(changes: dict[tuple[str, str], float], **more) -> Measured:
    spans = Spans()
    for (stage, name), seconds in (PLAYED | changes).items():
        spans.add(stage, seconds, name)
    return Measured(spans.stages, seconds=20.0, **more)


def shown(**more) -> str:
    return page("agent", measured({}, **more))


def row(text: str, label: str) -> list[str]:
    return next(line[len(label) :].split() for line in text.splitlines() if line.startswith(f"{label}  "))


@pytest.mark.parametrize(
    ("changes", "what", "change"),
    [
        ({}, "the model: 39 % of a rollout's time; ", "raise num_samples_in_parallel"),
        ({("verify", ""): 6.0}, "verification: 59 % of a rollout's time; ", "@reward(cpu=True)"),
        ({("verify", ""): 6.0, ("verify", "right"): 5.0}, "verification: 59 %", "most of it right; let rewards"),
        (
            {("verify", ""): 6.0, ("verify", "right"): 5.0, ("verify", FOR_A_PROCESS): 4.0},
            "most of it (waiting for a process)",
            "one process less than there are cores",
        ),
        ({("tools", "look"): 5.0}, "the tools: 52 %", "most of it look; make them faster, or asynchronous"),
        ({("setup", ""): 5.0}, "the environment's setup: 49 %", "shared()"),
        ({("queue", "permit"): 5.0}, "the queue: 50 %", "add a replica"),
        ({("queue", "rate"): 5.0}, "the queue: 55 %", "the rate that limits.models sets"),
        ({("queue", "begin"): 9.0}, "the queue: 50 %", "what holds it among the functions"),
        ({("store", ""): 8.0}, "the store: 44 %", "durability"),
        ({("play", ""): 9.9}, "the agent: 44 %", "look for it among the functions"),
    ],
)
def test_what_takes_most_is_named_with_what_to_change(changes, what, change):
    sentence = page("agent", measured(changes)).splitlines()[1]
    assert sentence.startswith("Change first: ")
    assert what in sentence
    assert change in sentence


def test_a_process_that_has_no_time_left_comes_first():
    assert "Change first: the process that plays: 97 % of a core" in shown(cores=0.97)


def test_a_function_that_lets_nothing_go_on_beside_it_comes_before_all_others():
    held = {("held", "verify right"): 9.0, ("held", "tool look"): 3.0}
    text = page("agent", measured(held, held=0.6, cores=0.97))
    assert "Change first: verify right: it and its like hold the process for 60 % of the time" in text
    assert row(text, "  verify right")[-2:] == ["9.00", "s"]
    assert row(text, "  tool look")[-2:] == ["3.00", "s"]
    assert "held  " not in text.partition("stage ")[2]


def test_each_stage_has_its_row_and_its_parts_under_it():
    text = shown()
    assert row(text, "rollout")[-4:] == ["10.00", "s", "98.0", "%"]
    assert row(text, "verify")[-4:] == ["3.00", "s", "29.4", "%"]
    assert row(text, "  verify polite")[-4:] == ["1.20", "s", "11.8", "%"]
    assert row(text, "tools")[0] == "2"
    assert row(text, "  tool look")[-4:] == ["600", "ms", "5.9", "%"]
    # One part alone is the stage.
    assert row(text, "model policy")[0] == "1"
    assert "play" not in [line.split()[0] for line in text.splitlines() if line]
    order = [text.index(f"\n{label}  ") for label in ("rollout", "model policy", "verify", "tools", "queue", "setup")]
    assert order == sorted(order)


def test_the_agent_has_what_its_calls_and_its_tools_leave():
    assert row(shown(), "agent") == ["600", "ms", "5.9", "%"]


def test_tools_side_by_side_leave_the_agent_nothing_and_no_less():
    assert row(page("agent", measured({("tools", "look"): 9.0})), "agent") == ["0", "µs", "0.0", "%"]


def test_a_service_without_rollouts_has_shares_of_what_it_did():
    spans = Spans()
    spans.add("model", 3.0, "policy")
    spans.add("queue", 1.0, "permit")
    text = page("policy_model", Measured(spans.stages, seconds=9.0))
    assert text.startswith("Profile of policy_model: 9.00 s, 0 % of a core\n")
    assert row(text, "model policy")[-2:] == ["75.0", "%"]


def test_it_says_of_how_many_processes_it_is_and_what_is_missing():
    text = shown(processes=3, lost=1, cores=0.5)
    first = "Profile of agent: 1 rollout in 20.00 s of 3 processes together, the busiest 50 % of a core; "
    assert text.startswith(f"{first}1 process ended before telling all\n")


def test_where_nothing_was_played_it_says_so():
    assert "Nothing was played." in page("agent", Measured())


def test_functions_stand_below_and_it_says_which_table_shows_what():
    functions = [Function("Shop.take", "/shop.py", 3, 4, 0.5, 1.0), Function("other", "/x.py", 1, 1, 0.0, 0.0)]
    stages, computed = shown(functions=functions).split("\nCPU time by function: ")
    assert "waits included" in stages
    assert "without waits" in computed
    assert computed.splitlines()[3].split() == ["name", "ncall", "tsub", "ttot", "tavg"]
    assert computed.splitlines()[4].split() == ["Shop.take", "4", "0.500000", "1.000000", "0.250000"]
    chosen = page("agent", measured({}, functions=functions), "shop").split("\nCPU time by function")[1]
    assert chosen.startswith(", with 'shop' in their name or file: ")
    assert "other" not in chosen.splitlines()[-1]
