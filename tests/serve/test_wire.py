"""What services and stand-ins say to each other of turns, verdicts and failures."""

import json

import pytest
from tests.test_layers import MODULES, imported

import rollmill as rm
from rollmill.errors import OutageError
from rollmill.serve import wire

DEEP = b"[" * 200_000


def items(*found: dict) -> tuple[rm.Item, ...]:
    return tuple(rm.read_item(json.dumps(one).encode()) for one in found)


MESSAGE = {"type": "message", "role": "assistant", "content": "x"}
CALL = {"type": "function_call", "name": "f", "call_id": "c"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}
USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("found", "turns", "calls"),
    [
        ((), 0, 0),
        ((USER,), 0, 0),
        ((MESSAGE,), 1, 0),
        (({"type": "reasoning"}, CALL, CALL), 1, 0),
        ((CALL, OUTPUT, CALL, OUTPUT, MESSAGE), 3, 2),
        ((MESSAGE, USER, MESSAGE), 2, 0),
        (({"type": "dream"}, OUTPUT), 1, 1),
    ],
)
def test_turns_and_calls_as_far_as_items_tell(found, turns, calls):
    assert wire.counted(items(*found)) == wire.Counts(turns, calls)


@pytest.mark.parametrize(
    ("where", "kind", "status"),
    [
        ("model", "rate_limit", 429),
        ("model", "timeout", 504),
        ("model", "odd", 500),
        ("tool", "timeout", 504),
        ("tool", "error", 500),
        ("verifier", "replay_differs", 422),
        ("environment", "error", 500),
    ],
)
def test_every_failure_has_a_status_and_can_be_read_back(where, kind, status):
    failure = rm.Failure(where, kind, "so it was", retryable=True, retry_after_s=0.2)
    answer = wire.failed(failure).answer()
    assert answer.status == status
    assert answer.headers == (("Retry-After", "1"),), "no client is sent back at once"
    assert wire.read_failure(answer.body) == failure
    assert (wire.code(answer.body), wire.said(answer.body)) == (f"{where}_{kind}", f"{where}: so it was")


@pytest.mark.parametrize(
    "body", [b"", b"x", b"null", b"[]", b"{}", DEEP, b"\xff", b'{"error": "text"}', b'{"error": {"code": []}}']
)
def test_answers_that_tell_nothing(body):
    assert wire.code(body) == ""
    assert wire.read_failure(body) is None
    assert wire.stopping(body, "x") is None
    assert 0 < len(wire.said(body)) <= 400


def test_an_error_page_is_said_in_one_short_line():
    assert wire.said(b"<html>\n\n  <h1>502</h1>\r\n" + b"x " * 5000) == ("<html> <h1>502</h1> " + "x " * 500)[:400]


def test_what_stops_every_rollout_is_told_from_what_stops_one():
    for code, kind in (("outage", OutageError), ("config", rm.ConfigError), ("no_token", rm.ConfigError)):
        assert type(wire.stopping(json.dumps({"error": {"message": "x", "code": code}}).encode(), "x")) is kind
    assert wire.stopping(b'{"error": {"message": "x", "code": "tool_error"}}', "x") is None


def test_no_module_reads_what_could_run_code():
    readers = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    tops = {module: {name.partition(".")[0] for name, _ in imported(tree)} for module, tree in MODULES.items()}
    assert not {module for module, names in tops.items() if names & readers}
