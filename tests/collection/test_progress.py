import io
import os
import pty

import rollmill as rm
from rollmill.collection import progress
from rollmill.collection.progress import Progress
from rollmill.types import Response


def rollout(reward: float | None) -> rm.Rollout:
    task = rm.Task.of("x")
    slot = rm.Slot("agent", task.identity)
    failure = None if reward is not None else rm.Failure("tool", "error", "x")
    response = Response((), rm.Usage(30, 12))
    return rm.Rollout(
        slot, task, response, rm.Stop.DONE, "m", rm.Reward(reward) if reward is not None else None, failure
    )


def test_a_log_gets_lines_that_can_be_grepped(monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    stream = io.StringIO()
    with Progress(4, held=1, stream=stream) as shown:
        for reward in (1.0, 0.0, None):
            shown.ended(rollout(reward))
    lines = stream.getvalue().splitlines()
    assert all(line.startswith("Collecting rollouts") for line in lines)
    assert "4/4" in lines[-1]
    assert "reward 0.500" in lines[-1]
    assert "1 failed" in lines[-1]
    assert "\r" not in stream.getvalue()


def test_a_quick_run_leaves_one_line_in_a_log():
    stream = io.StringIO()
    with Progress(1, stream=stream) as shown:
        shown.ended(rollout(1.0))
    assert stream.getvalue().count("Collecting rollouts: 100%") == 1


def test_a_terminal_gets_the_bar_of_the_seeds():
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream, Progress(2, stream=stream) as shown:
        shown.ended(rollout(1.0))
        shown.say("a line of its own")
        shown.ended(rollout(1.0))
        shown.__exit__(None, None, None)
        stream.flush()
        text = ""
        while "\r\n" not in text[-2:]:
            text += os.read(ours, 10_000).decode()
    os.close(ours)
    assert "Collecting rollouts: 100%|" in text
    assert "2/2 [" in text
    assert "it/s" in text
    assert "a line of its own\r\n" in text


def test_nothing_played_shows_nothing():
    stream = io.StringIO()
    with Progress(0, stream=stream):
        pass
    assert stream.getvalue() == ""
