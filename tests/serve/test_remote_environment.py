"""An environment behind a service of anybody's: sessions by hand, and every fault by its class."""

import json
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.net.conftest import no_proxy
from tests.serve import other as others
from tests.serve.other import Other, answered, by_path, listening

import rollmill as rm
from rollmill.errors import OutageError, RollmillError, RolloutError
from rollmill.net.connection import CallDeadlines
from rollmill.rollout import in_thread, play
from rollmill.serve.client import Client
from rollmill.serve.remote_environment import RemoteWorld

__all__ = ["no_proxy"]

TASK = rm.read_task(b'{"responses_create_params": {"input": "Play."}, "id": 7}', rm.Task)
TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
DESCRIBED = {"environment": "Theirs", "tools": TOOLS}
SEEDED = answered({}, Set_Cookie="session=one; Path=/; HttpOnly")
WHOLE = {"/seed_session": SEEDED, "/look": answered(b"a wall"), "/verify": {"reward": 0.5, "seen": 3, "why": "ok"}}
DEADLINES = CallDeadlines(connect_s=2, first_byte_s=0.2, idle_s=0.2, total_s=5)


@asynccontextmanager
async def world_of(answers: dict[str, Any], task: rm.Task = TASK):
    async with listening(Other(by_path(answers))) as other:
        client = Client(other.url, deadlines=DEADLINES, wait_s=0.2)
        async with RemoteWorld(client).opened() as world:
            yield other, world(task)


def call(name: str = "look", arguments: str = "{}") -> rm.FunctionCall:
    return rm.FunctionCall(name=name, arguments=arguments, call_id="c1")


async def fault(do, answers: dict[str, Any]) -> RollmillError:
    """What comes of it where the service answers so."""
    async with world_of(answers) as (_, world):
        with pytest.raises(RollmillError) as error:
            await do(world)
    return error.value


async def begin(world) -> None:
    await world.setup()


async def look(world) -> None:
    await world.setup()
    await world.call(call())


async def judge(world) -> None:
    await world.setup()
    await world.score(in_thread)


async def speak(world) -> None:
    await world.setup()
    await world.user()


ON = {"/seed_session": begin, "/look": look, "/verify": judge}
WHERE = {"/seed_session": "environment", "/look": "tool", "/verify": "verifier"}


async def test_a_rollout_with_a_program_that_knows_nothing_of_us():
    task = TASK.with_params({"tools": TOOLS})
    async with listening(Other(by_path(WHOLE))) as other, RemoteWorld(Client(other.url)).opened() as world:
        rollout = await play(task, world, rm.ToolAgent(), rm.Scripted(call(), "Done."))
    assert rollout.failure is None, rollout.failure
    assert (rollout.reward.value, rollout.reward.metrics, rollout.reward.notes) == (0.5, {"seen": 3}, {"why": "ok"})
    assert other.paths == ["/environment", "/seed_session", "/look", "/verify"]
    assert "cookie" not in other.heard[1].head.lower()
    assert all("Cookie: session=one\r\n" in line.head for line in other.heard[2:])
    assert json.loads(other.heard[1].body)["id"] == 7
    assert json.loads(other.heard[3].body)["response"]["output_text"] == "Done."


async def test_cookies_are_kept_by_hand_and_the_last_one_counts():
    async def two(line):
        await line.say(
            b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1; Path=/\r\nset-cookie: b=x=y\r\nSet-Cookie: broken\r\n"
            b"Content-Length: 2\r\n\r\n{}"
        )

    async with world_of({"/seed_session": two, "/look": answered(b"x", Set_Cookie="a=2")}) as (other, world):
        await world.setup()
        await world.call(call())
        await world.call(call())
        await world.close()
    assert [line.split("Cookie: ")[1].splitlines()[0] for line in (one.head for one in other.heard[2:])] == [
        *("a=1; b=x=y", "a=2; b=x=y", "a=2; b=x=y")
    ]
    assert other.paths[-1] == "/close"


async def test_what_has_no_session_is_not_closed_and_what_was_judged_neither():
    async with world_of({**WHOLE, "/seed_session": {}}) as (other, world):
        await world.setup()
        await world.close()
    assert "/close" not in other.paths
    async with world_of(WHOLE) as (other, world):
        await world.setup()
        await world.score(in_thread)
        await world.close()
    assert "/close" not in other.paths


@pytest.mark.parametrize("answer", [others.hangs_up, answered({}, 500), others.says_nothing, others.HTML])
async def test_a_close_that_fails_is_nobodys_affair(answer):
    async with world_of({**WHOLE, "/close": answer}) as (_, world):
        await world.setup()
        await world.close()


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_what_a_tool_refuses_is_told_to_the_model(status):
    async with world_of({**WHOLE, "/look": answered({"detail": "too dark"}, status)}) as (_, world):
        await world.setup()
        output = await world.call(call())
    assert (output.status, output.text) == ("incomplete", '{"detail": "too dark"}')


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("look", "{"),
        ("look", '{"a": NaN}'),
        ("verify", "{}"),
        ("close", "{}"),
        ("../look", "{}"),
        ("rollmill/user", "{}"),
    ],
)
async def test_what_the_model_gets_wrong_never_reaches_the_service(name, arguments):
    async with world_of({**WHOLE, "/environment": DESCRIBED}) as (other, world):
        await world.setup()
        output = await world.call(call(name, arguments))
    assert output.status == "incomplete"
    assert json.loads(output.text)["error"]
    assert other.paths == ["/environment", "/seed_session"]


@pytest.mark.parametrize("name", ["look around", "a/b", "ü?x=1#y", "%2e%2e", "a\r\nb: c"])
async def test_a_name_of_any_letters_is_one_word_of_the_path(name):
    async with world_of(WHOLE) as (other, world):
        await world.setup()
        await world.call(call(name))
    assert other.paths[-1].count("/") == 1
    assert "b: c" not in other.heard[-1].head


@pytest.mark.parametrize(
    "answer",
    [others.NOT_OURS, others.BINARY, others.DEEP, answered(b""), answered([]), answered({}, 405), answered({}, 500)],
)
async def test_a_service_that_says_nothing_of_itself(answer):
    async with world_of({**WHOLE, "/environment": answer}) as (_, world):
        await world.setup()
        assert world.offered_tools() is None
        assert await world.user() is None


async def test_it_is_asked_what_it_is_once():
    async with world_of({**WHOLE, "/environment": DESCRIBED}) as (other, world):
        for _ in range(3):
            await world.setup()
    assert other.paths.count("/environment") == 1


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_service_that_is_not_ready_to_say_what_it_is_is_asked_again(status):
    answers = {**WHOLE, "/environment": answered({"detail": "soon"}, status)}
    error = await fault(begin, answers)
    assert isinstance(error, RolloutError)
    assert error.failure.retryable


@pytest.mark.parametrize("path", ON)
@pytest.mark.parametrize(
    ("status", "again"),
    [(302, False), (401, False), (403, False), (418, False), (500, False), (429, True), (503, True)],
)
async def test_statuses_of_a_program_that_says_no_more(path, status, again):
    error = await fault(ON[path], {**WHOLE, path: answered(b"<h1>so it\n is</h1>", status, retry_after="3")})
    assert isinstance(error, RolloutError)
    failure = error.failure
    assert (failure.where, failure.kind, failure.retryable, failure.retry_after_s) == (WHERE[path], "error", again, 3)
    assert failure.detail.endswith(f"{path} answered {status}: <h1>so it is</h1>")


@pytest.mark.parametrize("path", ON)
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (others.hangs_up, "unreachable"),
        (others.hangs_up_half_way, "unreachable"),
        (others.speaks_another_language, "unreachable"),
        (others.says_nothing, "timeout"),
    ],
)
async def test_no_answer_at_all(path, answer, kind):
    error = await fault(ON[path], {**WHOLE, path: answer})
    assert isinstance(error, RolloutError)
    assert (error.failure.kind, error.failure.retryable) == (kind, True)
    assert error.failure.where == (WHERE[path] if kind == "timeout" else "infrastructure")


@pytest.mark.parametrize("path", ON)
async def test_what_a_service_of_ours_says_of_a_failure(path):
    told = {"where": "tool", "kind": "error", "detail": "the shelf fell over", "retryable": True}
    error = await fault(ON[path], {**WHOLE, path: answered({"error": {"message": "x"}, "failure": told}, 500)})
    assert isinstance(error, RolloutError)
    assert error.failure == rm.Failure("tool", "error", "the shelf fell over", retryable=True)


@pytest.mark.parametrize("path", ["/look", "/verify"])
async def test_a_world_that_is_gone_is_played_anew(path):
    gone = {"error": {"message": "this session has ended", "code": "session_ended"}}
    error = await fault(ON[path], {**WHOLE, path: answered(gone, 410)})
    assert isinstance(error, RolloutError)
    failure = error.failure
    assert (failure.where, failure.kind, failure.retryable) == ("infrastructure", "session_lost", True)
    assert failure.detail.endswith(f"{path} answered 410: this session has ended")


@pytest.mark.parametrize("path", ON)
async def test_a_service_that_stays_away_stops_the_run(path):
    async with world_of(WHOLE) as (other, world):
        if path != "/seed_session":
            await world.setup()
        url = other.url
    # Nobody listens there any more.
    with pytest.raises(OutageError, match=f"the environment at {url} cannot be reached: Connection refused"):
        await {"/seed_session": world.setup, "/look": lambda: world.call(call())}.get(
            path, lambda: world.score(in_thread)
        )()


@pytest.mark.parametrize("path", ["/environment", *ON])
@pytest.mark.parametrize(
    ("code", "kind"),
    [("outage", OutageError), ("config", rm.ConfigError), ("contract", rm.ContractError), ("no_token", rm.ConfigError)],
)
async def test_what_every_other_rollout_would_come_to_stops_them_all(path, code, kind):
    status = {"outage": 503, "no_token": 401}.get(code, 503 if path == "/environment" else 500)
    error = await fault(
        ON.get(path, begin), {**WHOLE, path: answered({"error": {"message": "no", "code": code}}, status)}
    )
    assert type(error) is kind


@pytest.mark.parametrize(
    "answer",
    [
        others.NOT_OURS,
        others.BINARY,
        others.DEEP,
        answered(b""),
        answered(b"<html>"),
        answered([]),
        answered(None),
        answered({"reward": "high"}),
        answered({"reward": None}),
        answered(b'{"reward": 1e999}'),
        answered(b'{"reward": NaN}'),
        answered({"reward": 1, "reward_components": [1]}),
        answered({"reward": 1, "rollmill": {"metrics": {"x": "y"}}}, x_rollmill="1"),
        answered({"reward": 1, "rollmill": {"added": ["gone"]}}, x_rollmill="1"),
    ],
)
async def test_verdicts_that_are_none(answer):
    error = await fault(judge, {**WHOLE, "/verify": answer})
    assert isinstance(error, RolloutError)
    assert (error.failure.where, error.failure.kind) == ("verifier", "malformed")


@pytest.mark.parametrize("answer", [others.NOT_OURS, answered({"words": 3}), others.BINARY, others.DEEP, answered([])])
async def test_words_that_are_none(answer):
    described = {**DESCRIBED, "user": True}
    answers = {**WHOLE, "/environment": described, "/rollmill/user": answer}
    if answer is others.NOT_OURS:
        async with world_of(answers) as (_, world):
            await world.setup()
            assert await world.user() is None
        return
    error = await fault(speak, answers)
    assert isinstance(error, RolloutError)
    assert error.failure.kind == "malformed"
