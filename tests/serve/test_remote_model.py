"""A model behind a service: every status, every failure and every malformed answer by its class."""

from contextlib import asynccontextmanager

import pytest
from tests.net.conftest import no_proxy
from tests.serve import other as others
from tests.serve.other import Other, answered, listening

import rollmill as rm
from rollmill.errors import ModelError, OutageError, RollmillError, RolloutError
from rollmill.model import Conversation
from rollmill.net.connection import CallDeadlines
from rollmill.serve.client import Client
from rollmill.serve.remote_model import RemoteModel

__all__ = ["no_proxy"]

MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]}
DEADLINES = CallDeadlines(connect_s=2, first_byte_s=0.2, idle_s=0.2, total_s=5)


@asynccontextmanager
async def model_of(*answers):
    async with listening(Other(*answers)) as other:
        client = Client(other.url, deadlines=DEADLINES, wait_s=0.2)
        async with RemoteModel("m", client) as model:
            yield other, model


async def asked(model: RemoteModel, text: str = "Hello?") -> rm.Reply:
    return await model.reply(Conversation((rm.user(text),), id="c1", turn=2))


async def fault(*answers) -> RollmillError:
    async with model_of(*answers) as (other, model):
        with pytest.raises(RollmillError) as error:
            await asked(model)
        assert len(other.heard) == 1, "a call is made once"
    return error.value


async def test_an_answer_of_anybodys_responses_api():
    async with model_of({"id": "r", "output": [MESSAGE], "usage": {"input_tokens": 3, "output_tokens": 2}}) as (
        other,
        model,
    ):
        reply = await asked(model)
    assert (reply.text, reply.usage.total_tokens) == ("Hello.", 5)
    assert other.paths == ["/v1/responses"]
    assert "x-rollmill-conversation: c1\r\n" in other.heard[0].head
    assert "x-rollmill-turn: 2\r\n" in other.heard[0].head


@pytest.mark.parametrize(
    ("status", "kind", "again"),
    [
        (400, "caller", False),
        (401, "denied", False),
        (403, "denied", False),
        (404, "denied", False),
        (408, "timeout", True),
        (418, "caller", False),
        (422, "caller", False),
        (429, "rate_limit", True),
        (500, "overload", True),
        (502, "overload", True),
        (503, "overload", True),
        (504, "timeout", True),
        (302, "caller", False),
    ],
)
async def test_statuses_of_a_program_that_says_no_more(status, kind, again):
    error = await fault(answered({"detail": "so it is"}, status, retry_after="7"))
    assert isinstance(error, ModelError)
    assert (error.failure.kind, error.failure.retryable, error.failure.retry_after_s) == (kind, again, 7)
    assert f"answered {status}: " in error.failure.detail


async def test_what_a_service_of_ours_says_of_a_failure():
    told = {"where": "model", "kind": "malformed", "detail": "odd", "retryable": True}
    error = await fault(answered({"error": {"message": "model: odd", "code": "model_malformed"}, "failure": told}, 502))
    assert isinstance(error, RolloutError)
    assert (error.failure.kind, error.failure.retryable) == ("malformed", True)
    assert error.failure.detail.endswith("answered 502: model: odd")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("outage", 503, OutageError),
        ("config", 500, rm.ConfigError),
        ("contract", 500, rm.ContractError),
        ("no_token", 401, rm.ConfigError),
    ],
)
async def test_what_every_other_call_would_come_to_stops_them_all(code, status, kind):
    error = await fault(answered({"error": {"message": "look", "code": code}}, status))
    assert type(error) is kind
    assert str(error).endswith(f"answered {status}: look")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (others.HTML, "overload"),
        (others.NOT_OURS, "malformed"),
        (others.DEEP, "malformed"),
        (others.BINARY, "malformed"),
        (answered(b""), "malformed"),
        (answered(b"<html>hello"), "malformed"),
        (answered([]), "malformed"),
        (answered({"output": "x"}), "malformed"),
        (answered({"output": [{"type": 3}]}), "malformed"),
        (answered({"output": [], "rollmill": {"fields": 3}}), "malformed"),
        (answered({"output": [], "error": {"code": "server_error", "message": "x"}}), "overload"),
        (answered(b"[" * 200_000, 500), "overload"),
        (answered(b"\xff", 500), "overload"),
        (others.hangs_up, "transport"),
        (others.hangs_up_half_way, "transport"),
        (others.speaks_another_language, "transport"),
        (others.says_nothing, "timeout"),
    ],
)
async def test_answers_that_are_none(answer, kind):
    error = await fault(answer)
    assert isinstance(error, ModelError)
    assert error.failure.kind == kind
    assert len(error.failure.detail) < 1000


async def test_a_service_that_stays_away_stops_the_run():
    async with model_of(answered({})) as (other, model):
        pass
    async with RemoteModel("m", Client(other.url, wait_s=0.1)) as model:
        with pytest.raises(OutageError, match=f"the model m at {other.url} cannot be reached: Connection refused"):
            await asked(model)
