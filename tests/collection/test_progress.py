import io
import os
import pty

import pytest
from tests.collection.parts import entry

import rollmill as rm
from rollmill.collection.progress import LONG_WAIT_S, Progress
from rollmill.collection.snapshot import Snapshot


def seen(ended: int, planned: int | None = 4, **fields) -> Snapshot:
    given = {"state": "running", "at": "", "run": "r", "pid": 1, "host": "here", "elapsed_s": 1.0}
    return Snapshot(**given, ended=ended, planned=planned, **fields)


def test_a_log_gets_lines_that_can_be_grepped():
    stream = io.StringIO()
    with Progress(line_every_s=0.0, stream=stream) as shown:
        shown.show(seen(1, held=1))
        shown.show(seen(3, held=1, reward_mean=0.5, failed=1, tokens_per_s=1234, retries={"overload": 2, "timeout": 1}))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert all(line.startswith("Collecting rollouts") for line in lines)
    assert "2/4" in lines[0]
    assert "reward -" in lines[0]
    assert "4/4" in lines[1]
    for words in ("1234 tok/s", "reward 0.500", "1 failed", "3 retried"):
        assert words in lines[1]
    assert "\r" not in stream.getvalue()


def test_between_two_lines_there_is_silence_and_the_last_is_always_written():
    stream = io.StringIO()
    with Progress(line_every_s=3600.0, stream=stream) as shown:
        for ended in range(4):
            shown.show(seen(ended))
        assert stream.getvalue() == ""
        shown.show(seen(4), last=True)
    assert stream.getvalue().startswith("Collecting rollouts: 100%")


def test_a_plan_of_unknown_length_has_no_percentage():
    stream = io.StringIO()
    with Progress(line_every_s=0.0, stream=stream) as shown:
        shown.show(seen(70, planned=None))
    assert stream.getvalue().startswith("Collecting rollouts: 70it [")


def test_what_holds_it_up_is_said_when_it_changes():
    stream = io.StringIO()
    with Progress(line_every_s=0.0, stream=stream) as shown:
        for bottleneck in ("", "the model", "the model", "the tools"):
            shown.show(seen(1, bottleneck=bottleneck))
    said = [line for line in stream.getvalue().splitlines() if line.startswith("Bottleneck")]
    assert said == ["Bottleneck: the model", "Bottleneck: the tools"]


def test_while_it_waits_for_rows_one_line_is_enough():
    stream = io.StringIO()
    with Progress(line_every_s=0.0, stream=stream) as shown:
        for ended, waited_s in ((1, None), (2, 0.5), (2, 1.5), (2, 2.5), (3, 0.2), (3, 1.2), (3, None), (3, 0.1)):
            shown.show(seen(ended, planned=None, follows=True, waited_s=waited_s))
        shown.show(seen(3, planned=3, waited_s=9.0), last=True)
    said = [(line.split("it ")[0][-1], "waiting for rows" in line) for line in stream.getvalue().splitlines()[:-1]]
    assert said == [("1", False), ("2", True), ("3", True), ("3", False), ("3", True)]
    assert "3/3" in stream.getvalue().splitlines()[-1]


def test_a_long_wait_is_said_once_until_something_ends():
    busy = rm.Failure("model", "rate_limit", "429: later", retryable=True)
    stream = io.StringIO()
    with Progress(stream=stream) as shown:
        shown.retrying(entry(failure=busy), LONG_WAIT_S - 1)
        assert stream.getvalue() == ""
        for _ in range(3):
            shown.retrying(entry(failure=busy), 90.0)
        assert stream.getvalue() == "Waiting: a rollout is tried again in 90 s (429: later)\n"
        shown.ended(entry(1.0))
        shown.retrying(entry(failure=busy), 90.0)
    assert stream.getvalue().count("Waiting") == 2


def test_a_terminal_gets_the_bar_of_the_seeds_and_the_log_its_lines():
    ours, theirs = pty.openpty()
    log = []
    with os.fdopen(theirs, "w") as stream:
        with Progress(line_every_s=0.0, stream=stream, log=log.append) as shown:
            shown.show(seen(1, 2))
            shown.say("a line of its own")
            shown.show(seen(2, 2), last=True)
        stream.flush()
        text = ""
        while "\r\n" not in text[-2:]:
            text += os.read(ours, 10_000).decode()
    os.close(ours)
    assert "Collecting rollouts: 100%|" in text
    assert "2/2 [" in text
    assert "it/s" in text
    assert "a line of its own\r\n" in text
    assert [line[:19] for line in log] == ["Collecting rollouts", "a line of its own", "Collecting rollouts"]


def test_nothing_played_shows_nothing():
    stream = io.StringIO()
    with Progress(stream=stream) as shown:
        shown.show(seen(0), last=True)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(28, "No space left on device")])
def test_a_reader_that_has_gone_is_no_reason_to_stop(error):
    class Gone(io.StringIO):
        def write(self, text):
            raise error

    log = []
    with Progress(line_every_s=0.0, stream=Gone(), log=log.append) as shown:
        shown.show(seen(1))
        shown.say("more")
    assert log[-1] == "more"
