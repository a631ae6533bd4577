"""An environment as a service: sessions, tools, verdicts, and what no client can leave behind."""

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest
from tests.places.worlds import Broken, Sphinx, Store
from tests.serve.conftest import Asked, ask, environment_service, post

import rollmill as rm
from rollmill.rollout import Deadlines

ROW = {"responses_create_params": {"input": "Two apples."}, "stock": {"apple": 3}, "want": {"apple": 2}, "id": 7}
RIDDLE = {"responses_create_params": {"input": "What walks on four legs?"}, "answer": "man"}
MESSAGE = {"type": "message", "role": "assistant", "content": "a man"}


class Traced(rm.Environment):
    """Counts what is open, waits when it is told to, and fails when it is told to."""

    opened: list[rm.Environment] = []
    waiting: list[asyncio.Event] = []

    async def setup(self) -> None:
        self.opened.append(self)
        if self.task.get("setup") == "waits":
            await self._wait()
        if self.task.get("setup") == "breaks":
            raise RuntimeError("no room in the world")

    async def close(self) -> None:
        self.opened.remove(self)
        if self.task.get("close") == "breaks":
            raise RuntimeError("the door is stuck")

    @rm.tool
    async def wait(self) -> str:
        """Wait for ever."""
        await self._wait()

    @rm.tool
    def leave(self) -> str:
        """Leave Python."""
        raise SystemExit(3)

    async def _wait(self) -> None:
        event = asyncio.Event()
        self.waiting.append(event)
        await event.wait()

    def verify(self, task, response):
        return 1


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    Traced.opened, Traced.waiting = [], []
    yield
    assert Traced.opened == []


async def entered() -> None:
    while not Traced.waiting:
        await asyncio.sleep(0)


def play(**fields: object) -> dict:
    return {"responses_create_params": {"input": "Play."}, **fields}


async def seeded(service, row=ROW) -> str:
    answer = await post(service.app, "/seed_session", row)
    assert (answer.status, answer.json) == (200, {})
    return answer.cookie


# A session.


async def test_a_task_from_its_beginning_to_its_verdict():
    async with environment_service(Store) as service:
        cookie = await seeded(service)
        assert (await post(service.app, "/look", b"", cookie=cookie)).json == {"apple": 3}
        taken = await post(service.app, "/take", {"item": "apple", "count": 2}, cookie=cookie)
        assert (taken.status, taken.body) == (200, b"cart: {'apple': 2}")
        assert taken.headers["content-type"] == "text/plain; charset=utf-8"
        assert taken.cookie == cookie
        verdict = (await post(service.app, "/verify", ROW | {"response": {"output": [MESSAGE]}}, cookie=cookie)).json
        assert (verdict["reward"], verdict["reward_components"]) == (1, {"right_cart": 1, "polite": 0})
        assert (verdict["id"], verdict["turns_taken"]) == (7, 1)
        over = await post(service.app, "/look", cookie=cookie)
        assert (over.status, over.code) == (410, "session_ended")


async def test_two_clients_never_see_each_others_world():
    async with environment_service(Store) as service:
        one, other = await seeded(service), await seeded(service)
        assert one != other
        await post(service.app, "/take", {"item": "apple", "count": 3}, cookie=one)
        assert (await post(service.app, "/look", cookie=one)).json == {"apple": 0}
        assert (await post(service.app, "/look", cookie=other)).json == {"apple": 3}


async def test_a_new_task_under_the_same_cookie_is_a_new_world():
    async with environment_service(Store) as service:
        cookie = await seeded(service)
        await post(service.app, "/take", {"item": "apple"}, cookie=cookie)
        again = await post(service.app, "/seed_session", ROW, cookie=cookie)
        assert again.cookie == cookie
        assert (await post(service.app, "/look", cookie=cookie)).json == {"apple": 3}
        assert len(service.sessions) == 1


async def test_a_cookie_that_a_client_made_up_opens_nothing():
    async with environment_service(Store) as service:
        made_up = "Store___store=" + "A" * 32
        assert (await post(service.app, "/look", cookie=made_up)).code == "session_ended"
        assert (await post(service.app, "/seed_session", ROW, cookie=made_up)).cookie != made_up


async def test_without_a_session_a_tool_says_how_to_get_one():
    async with environment_service(Store) as service:
        answer = await post(service.app, "/take", {"item": "apple"})
        assert (answer.status, answer.code) == (409, "no_session")
        assert "/seed_session" in answer.json["error"]["message"]


async def test_close_ends_it_and_needs_none():
    async with environment_service(Traced) as service:
        cookie = await seeded(service, play())
        assert len(service.sessions) == len(Traced.opened) == 1
        for _ in range(2):
            assert (await post(service.app, "/close", cookie=cookie)).status == 200
        assert (await post(service.app, "/close", b"no json")).status == 200
        assert len(service.sessions) == 0


async def test_an_instance_may_be_called_as_no_cookie_can():
    async with environment_service(Store) as service:
        service.app.title = service.name
        odd = type(service)("my shop; ü", Store, service._world, service._compute, service._aggregate)
        async with odd.life():
            cookie = await seeded(odd)
            assert (await post(odd.app, "/look", cookie=cookie)).status == 200


# Tools.


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"item": 3}', "Expected `str`"),
        (b'{"item": "apple", "much": 1}', "much"),
        (b'{"count": 1}', "item"),
        (b"[1]", "object"),
        (b"null", "object"),
        (b"{", "not JSON"),
        (b'{"item": "apple", "count": NaN}', "not JSON"),
        (b'{"item": "apple", "count": 1e999}', "Number out of range"),
        (b'{"item": ' + b"[" * 100_000, "Expected `str`"),
        (b'{"item": "pear"}', "not enough pear"),
    ],
)
async def test_arguments_that_are_wrong_are_the_models_to_correct(body, said):
    async with environment_service(Store) as service:
        answer = await post(service.app, "/take", body, cookie=await seeded(service))
        assert answer.status == 422
        assert said in answer.json["error"]


async def test_a_tool_that_there_is_not():
    async with environment_service(Store) as service:
        answer = await post(service.app, "/steal", cookie=await seeded(service))
        assert (answer.status, answer.code) == (404, "unknown_tool")
        assert answer.json["error"]["message"] == "Unknown tool: steal. The tools are: take, look, pay, drop"


async def test_the_world_that_has_ended_says_so():
    async with environment_service(Store) as service:
        cookie = await seeded(service)
        paid = await post(service.app, "/pay", cookie=cookie)
        assert (paid.headers["x-rollmill-ended"], paid.body.decode()) == ("true", "ünicode ✓")


async def test_a_tool_that_breaks_is_a_failure_with_its_address():
    async with environment_service(Store) as service:
        cookie = await seeded(service)
        answer = await post(service.app, "/drop", cookie=cookie)
        assert (answer.status, answer.code) == (500, "tool_error")
        assert answer.json["failure"]["where"] == "tool"
        assert "the shelf fell over" in answer.json["failure"]["detail"]
        assert (await post(service.app, "/look", cookie=cookie)).status == 200


async def test_a_tool_past_its_deadline():
    async with environment_service(Traced, deadlines=Deadlines(play_s=0.05, close_s=1)) as service:
        answer = await post(service.app, "/wait", cookie=await seeded(service, play()))
        assert (answer.status, answer.code, answer.json["failure"]["retryable"]) == (504, "tool_timeout", True)


async def test_a_tool_that_leaves_python_ends_no_service():
    async with environment_service(Traced) as service:
        answer = await post(service.app, "/leave", cookie=await seeded(service, play()))
        assert (answer.status, answer.code) == (500, "tool_error")
        assert "SystemExit: 3" in answer.json["error"]["message"]


@pytest.mark.parametrize("name", ["seed_session", "verify", "close", "aggregate_metrics"])
async def test_a_tool_cannot_have_the_name_of_a_route(name):
    kind = type("Odd", (rm.Environment,), {name: rm.tool(lambda self: "x")})
    kind.tools[name].__dict__["name"] = name
    with pytest.raises(rm.ContractError, match=f"cannot have a tool called {name}; rename it"):
        async with environment_service(kind):
            pass


async def test_a_tool_may_be_called_like_a_route_that_is_read():
    class Told(rm.Environment):
        @rm.tool
        def environment(self) -> str:
            """Look around."""
            return "all is well"

    async with environment_service(Told) as service:
        assert (await post(service.app, "/environment", cookie=await seeded(service, play()))).body == b"all is well"
        assert (await ask(service.app, "GET", "/environment")).json["environment"] == "Told"


# The verdict.


async def test_a_verdict_without_a_session_as_of_a_stored_rollout():
    async with environment_service(Sphinx) as service:
        verdict = (await post(service.app, "/verify", RIDDLE | {"response": {"output": [MESSAGE]}})).json
        assert (verdict["reward"], verdict["length"], verdict["heard"]) == (1, 5, "a man")
        assert (await ask(service.app, "GET", "/reverify_mode")).json == "stateless"


async def test_a_world_that_must_be_played_is_not_judged_without_a_session():
    async with environment_service(Store) as service:
        row = ROW | {"response": {"output": [MESSAGE]}}
        assert (await post(service.app, "/verify", row)).code == "no_session"
        assert (await post(service.app, "/verify", row, cookie="Store___store=long-gone")).code == "session_ended"
        assert (await ask(service.app, "GET", "/reverify_mode")).json == "unsupported"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "`response`"),
        ({"response": None}, "`response`"),
        ({"response": {}}, "`output`"),
        ({"response": {"output": {}}}, "`response`"),
        ({"response": {"output": ["x"]}}, "`response`"),
        ({"response": {"output": [{"type": "message"}]}}, "role"),
        ({"response": {"output": [{"type": "function_call", "name": 1}]}}, "name"),
        ({"response": {"output": [], "usage": {"input_tokens": "many"}}}, "input_tokens"),
        ({"response": {"output": []}, "answer": 5}, "answer"),
        ({"response": {"output": []}, "responses_create_params": {}}, "input"),
        ({"response": {"output": []}, "responses_create_params": {"input": 5}}, "input"),
        ({"response": {"output": []}, "agent_ref": "x"}, "agent_ref"),
    ],
)
async def test_rows_that_are_none(row, said):
    async with environment_service(Sphinx) as service:
        answer = await post(service.app, "/verify", RIDDLE | row)
        assert (answer.status, answer.code) == (422, "invalid"), answer
        assert said in answer.json["error"]["message"]


async def test_a_verdict_that_breaks_is_a_failure_with_its_address():
    async with environment_service(Broken) as service:
        row = play(response={"output": []})
        answer = await post(service.app, "/verify", row)
        assert (answer.status, answer.code) == (500, "verifier_error")
        assert "no verdict today" in answer.json["failure"]["detail"]
        cookie = await seeded(service, play())
        assert (await post(service.app, "/verify", row, cookie=cookie)).status == 500
        assert len(service.sessions) == 1, "it may be asked again"


async def test_a_stored_rollout_that_its_world_does_not_answer_as_it_did():
    class Replayed(Store):
        verification = "replay"

    call = {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "c"}
    output = {"type": "function_call_output", "call_id": "c", "output": '{"pear":1}'}
    async with environment_service(Replayed) as service:
        row = ROW | {"response": {"output": [call, output, MESSAGE]}}
        answer = await post(service.app, "/verify", row)
        assert (answer.status, answer.json["failure"]["kind"]) == (422, "replay_differs")
        output["output"] = '{"apple":3}'
        assert (await post(service.app, "/verify", row)).json["reward"] == 0


async def test_metrics_of_many_verdicts():
    async with environment_service(Sphinx) as service:
        assert (await post(service.app, "/aggregate_metrics", {"verify_responses": [{"reward": 1}]})).json == {
            "rows": 1
        }
        for body in ({}, {"verify_responses": 3}, {"verify_responses": [3]}, []):
            assert (await post(service.app, "/aggregate_metrics", body)).status == 422


# Nothing is left behind.


async def test_a_client_that_goes_away_while_its_world_is_built():
    async with environment_service(Traced) as service:
        asked = Asked(service.app, "POST", "/seed_session", play(setup="waits"))
        answering = asyncio.create_task(asked.answer())
        await entered()
        asked.leave()
        assert await answering is None
        assert len(service.sessions) == 0
        assert Traced.opened == []


async def test_a_client_that_goes_away_in_a_tool_keeps_its_session_until_it_ends():
    async with environment_service(Traced) as service:
        cookie = await seeded(service, play())
        asked = Asked(service.app, "POST", "/wait", headers=[("Cookie", cookie)])
        answering = asyncio.create_task(asked.answer())
        await entered()
        asked.leave()
        assert await answering is None
        await post(service.app, "/close", cookie=cookie)
        await asyncio.sleep(0.01)
        assert Traced.opened == []


async def test_a_world_that_cannot_be_built():
    async with environment_service(Traced) as service:
        answer = await post(service.app, "/seed_session", play(setup="breaks"))
        assert (answer.status, answer.code) == (500, "environment_error")
        assert Traced.opened == []


async def test_a_world_that_takes_too_long_to_build():
    async with environment_service(Traced, deadlines=Deadlines(setup_s=0.05, close_s=1)) as service:
        answer = await post(service.app, "/seed_session", play(setup="waits"))
        assert (answer.status, answer.code) == (504, "environment_timeout")
        assert Traced.opened == []


async def test_a_world_that_does_not_close_is_no_clients_affair(caplog):
    with caplog.at_level(logging.WARNING):
        async with environment_service(Traced) as service:
            cookie = await seeded(service, play(close="breaks"))
            assert (await post(service.app, "/verify", play(response={"output": []}), cookie=cookie)).status == 200
    assert "the door is stuck" in caplog.text


async def test_sessions_that_nobody_ends_end_with_their_lease():
    async with environment_service(Traced, idle_s=0.02) as service:
        for _ in range(20):
            await seeded(service, play())
        while len(service.sessions):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        assert Traced.opened == []


async def test_a_task_whose_check_leaves_python_ends_no_service():
    class Leaves(rm.Environment):
        verification = "stateless"

        @classmethod
        def check_task(cls, task, config):
            raise SystemExit(1)

    async with environment_service(Leaves) as service:
        for path, row in (("/seed_session", play()), ("/verify", play(response={"output": []}))):
            answer = await post(service.app, path, row)
            assert (answer.status, answer.code) == (500, "environment_error")


async def test_a_task_that_cannot_be_played_is_refused_before_anything_is_built():
    class Picky(Traced):
        @classmethod
        def check_task(cls, task, config):
            raise rm.ConfigError("no such level")

    async with environment_service(Picky) as service:
        answer = await post(service.app, "/seed_session", play())
        assert (answer.status, answer.json["error"]["message"]) == (422, "no such level")


async def test_what_it_says_of_itself():
    async with environment_service(Store) as service:
        told = (await ask(service.app, "GET", "/environment")).json
        assert (told["environment"], told["domain"], told["user"]) == ("Store", "agent", True)
        assert [tool["name"] for tool in told["tools"]] == ["take", "look", "pay", "drop"]


async def test_the_user_speaks_until_there_is_no_more_to_say():
    async with environment_service(Store) as service:
        cookie = await seeded(service, ROW | {"words": ["And a pear?"]})
        for words in ("And a pear?", None):
            answer = await post(service.app, "/rollmill/user", {"items": [MESSAGE]}, cookie=cookie)
            assert answer.json == {"words": words}
        for body in ({"items": 3}, {"items": [3]}, {"items": [{"type": "message"}]}, [], b"{"):
            assert (await post(service.app, "/rollmill/user", body, cookie=cookie)).status in (400, 422)


async def test_it_answers_json_that_others_can_read_whatever_the_row_holds():
    row = RIDDLE | {"response": {"output": [MESSAGE]}, "big": 10**300, "deep": json.loads("[" * 200 + "]" * 200)}
    async with environment_service(Sphinx) as service:
        verdict = (await post(service.app, "/verify", row)).json
        assert (verdict["big"], verdict["deep"]) == (row["big"], row["deep"])
