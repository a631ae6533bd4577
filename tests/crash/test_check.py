"""The checker itself: a good output passes, and each way of spoiling it is noticed and named."""

import json
from pathlib import Path

import pytest
from tests.crash.check import (
    check,
    check_kept,
    check_metrics,
    check_rework,
    check_waits,
    look,
    retries_for_each_answer,
    violations,
)
from tests.crash.rows import errands, identity
from tests.crash.script import Asked

ROWS = errands(4)
REPEATS = 2


def rollout(index: int, repeat: int) -> dict:
    row = ROWS[index]
    slot = {"agent": "errands", "task": identity(row), "occurrence": 0, "repeat": repeat}
    return {
        **row,
        "response": {"output_text": f"{row['number']}: {row['secret']}"},
        "reward": row["worth"],
        "_ng_task_index": index,
        "_ng_rollout_index": repeat,
        "rollmill": {"slot": slot},
    }


def failure(index: int, repeat: int, *, final: bool = True) -> dict:
    slot = rollout(index, repeat)["rollmill"]["slot"]
    return {"slot": slot, "final": final, "failure": {"where": "model", "kind": "overload", "detail": "503"}}


class Output:
    """An output that a test may spoil."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "out.jsonl"
        self.rollouts = [rollout(index, repeat) for index in range(len(ROWS)) for repeat in range(REPEATS)]
        self.failures: list[dict] = []
        self.folder = folder / "out.run"
        self.folder.mkdir()

    def write(self, end: bytes = b"") -> None:
        self.path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in self.rollouts) + end)
        lines = [json.dumps(row).encode() + b"\n" for row in self.failures]
        (self.folder / "failures.ndjson").write_bytes(b"".join(lines))

    def broken(self, **options: bool) -> list[str]:
        return violations(self.path, ROWS, REPEATS, **options)


@pytest.fixture
def output(tmp_path):
    return Output(tmp_path)


def test_a_good_output_breaks_nothing(output):
    output.write()
    assert output.broken() == []
    assert len(check(output.path, ROWS, REPEATS).rewarded) == 8


def test_a_slot_that_failed_for_good_counts_as_done(output):
    output.failures = [failure(3, 1, final=False), failure(3, 1)]
    del output.rollouts[-1]
    output.write()
    assert output.broken() == []
    assert look(output.path).ended == 8


def doubled(output: Output) -> None:
    output.rollouts.append(output.rollouts[0])


def lost(output: Output) -> None:
    del output.rollouts[2]


def only_half_tried(output: Output) -> None:
    output.failures = [failure(0, 0, final=False)]
    del output.rollouts[0]


def rewarded_and_failed(output: Output) -> None:
    output.failures = [failure(1, 1)]


def failed_twice(output: Output) -> None:
    output.failures = [failure(0, 0), failure(0, 0)]
    del output.rollouts[0]


def of_nobody(output: Output) -> None:
    output.rollouts[0]["rollmill"]["slot"]["repeat"] = 7


def swapped_rewards(output: Output) -> None:
    one, other = output.rollouts[0], output.rollouts[2]
    one["reward"], other["reward"] = other["reward"], one["reward"]


def swapped_answers(output: Output) -> None:
    one, other = output.rollouts[0], output.rollouts[2]
    one["response"], other["response"] = other["response"], one["response"]


def swapped_tasks(output: Output) -> None:
    one, other = output.rollouts[0]["rollmill"]["slot"], output.rollouts[2]["rollmill"]["slot"]
    one["task"], other["task"] = other["task"], one["task"]


def shared_indices(output: Output) -> None:
    output.rollouts[0]["_ng_rollout_index"] = 1


def torn_group(output: Output) -> None:
    output.rollouts[0]["_ng_task_index"] = 9


def shared_group(output: Output) -> None:
    for row in output.rollouts[:2]:
        row["_ng_task_index"], row["_ng_rollout_index"] = 3, row["_ng_rollout_index"] + 2


def no_number(output: Output) -> None:
    output.rollouts[0]["reward"] = float("nan")


def no_text(output: Output) -> None:
    output.rollouts[0]["response"]["model"] = "\ud800"


def rewarded_failure(output: Output) -> None:
    output.failures = [{**failure(0, 0), "reward": 0.0}]
    del output.rollouts[0]


def nameless_failure(output: Output) -> None:
    output.failures = [failure(0, 0)]
    output.failures[0]["failure"]["detail"] = ""
    del output.rollouts[0]


def sidecar(output: Output) -> None:
    (output.folder / "part.jsonl").touch()


SPOILED = {
    doubled: "I1: 2 rollouts of slot",
    lost: "I1: slot",
    only_half_tried: "is missing",
    rewarded_and_failed: "has a reward and failed for good",
    failed_twice: "failed for good 2 times",
    of_nobody: "I1: nobody asked for",
    swapped_rewards: "I9: slot",
    swapped_answers: "that of another task",
    swapped_tasks: "is not that of its task",
    shared_indices: "rollouts at the indices (0, 1)",
    torn_group: "is in 2 groups",
    shared_group: "is of 2 tasks",
    no_number: "NaN is no JSON",
    no_text: "surrogates not allowed",
    rewarded_failure: "I7: slot",
    nameless_failure: "does not say what it was",
    sidecar: "I3: scripts that glob",
}


@pytest.mark.parametrize(("spoil", "said"), SPOILED.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_what_is_spoiled_is_named(output, spoil, said):
    spoil(output)
    output.write()
    assert said in "\n".join(output.broken())
    with pytest.raises(AssertionError, match="promises broken"):
        check(output.path, ROWS, REPEATS)


def test_a_torn_line_is_right_after_a_kill_only(output):
    last = json.dumps(output.rollouts.pop()).encode()
    output.write(end=last[:-10])
    assert "no line break" in "\n".join(output.broken())
    assert output.broken(finished=False) == []


def test_a_torn_line_in_the_middle_is_never_right(output):
    output.write()
    whole = output.path.read_bytes()
    output.path.write_bytes(whole[:300] + b"\n" + whole[400:])
    assert any(said.startswith("I3") for said in output.broken(finished=False))


def test_a_reward_beside_a_failure_is_right_where_failures_were_played_again(output):
    output.failures = [failure(1, 1)]
    output.write()
    assert output.broken(retried=True) == []


def test_what_was_there_at_the_kill_must_be_there_later():
    check_kept([b"a", b"b"], [b"b", b"c", b"a"])
    with pytest.raises(AssertionError, match="I2: 1 rollouts are gone"):
        check_kept([b"a", b"b"], [b"b", b"c"])
    with pytest.raises(AssertionError, match="I2"):
        check_kept([b"a", b"a"], [b"a"])


def asked(at: float, key: str, said: str = "200", wait: float = 0.0, turn: int = 1) -> Asked:
    return Asked(at, key, 1, 0, turn, said, wait)


def test_rollouts_that_were_played_again_are_counted(output):
    output.write()
    answers = [asked(n, str(n)) for n in range(11)]
    assert check_rework(answers, look(output.path), allowed=3) == 3
    with pytest.raises(AssertionError, match="I4: 3 rollouts"):
        check_rework(answers, look(output.path), allowed=2)


def test_retries_are_counted_against_answers(output):
    output.write()
    log = [asked(0, "a", "429"), asked(1, "a", "503"), asked(2, "a"), asked(3, "b")]
    assert retries_for_each_answer(log, look(output.path)) == 1.0


def test_who_comes_back_too_early_is_noticed():
    assert check_waits([asked(0, "a", "429-seconds", 1.0), asked(1.01, "a"), asked(0.5, "b")]) == 1
    with pytest.raises(AssertionError, match=r"0\.100 s before Retry-After"):
        check_waits([asked(0, "a", "429-seconds", 1.0), asked(0.9, "a")])


def test_a_mean_that_counts_failures_is_noticed(output):
    output.write()
    found = look(output.path)
    mean = sum(row["reward"] for row in output.rollouts) / 8
    check_metrics(found, {"mean": {"reward": mean}, "over": {"reward": 8}})
    with pytest.raises(AssertionError, match="I7: the mean is over 9"):
        check_metrics(found, {"mean": {"reward": mean}, "over": {"reward": 9}})
    with pytest.raises(AssertionError, match="I7: reported"):
        check_metrics(found, {"mean": {"reward": mean * 8 / 9}, "over": {"reward": 8}})
