"""An application: routes, bounded bodies, and every mistake as JSON with a status."""

import asyncio
import json
import logging
from contextlib import asynccontextmanager

import pytest
from msgspec import Raw
from tests.serve.conftest import Asked, ask, post

import rollmill as rm
from rollmill.errors import OutageError
from rollmill.model import Secret
from rollmill.serve.app import App, Bounds, Route
from rollmill.serve.guard import Guard
from rollmill.serve.http import Answer, Request
from rollmill.serve.http import json as answer_json
from rollmill.serve.openapi import Operation

CANARY = "sk-canary-0123456789"


async def echo(request: Request) -> Answer:
    return answer_json(
        {"method": request.method, "path": request.path, "place": request.place, "size": len(request.body)}
    )


async def read(request: Request) -> Answer:
    return answer_json(request.read(dict[str, int]))


async def breaks(_: Request) -> Answer:
    raise RuntimeError(f"the key is {CANARY}")


async def misconfigured(_: Request) -> Answer:
    raise rm.ConfigError(f"api_key {CANARY}: wrong")


async def breaks_its_contract(_: Request) -> Answer:
    raise rm.ContractError("no reward")


async def in_an_outage(_: Request) -> Answer:
    raise OutageError("the model is gone")


def app_of(*routes: Route, **options) -> App:
    return App("tested", routes, hide=lambda text: text.replace(CANARY, "***"), **options)


def route(path: str, handler, method: str = "POST", *, long: bool = False) -> Route:
    return Route(method, path, handler, Operation("Tried"), long=long)


APP = app_of(
    route("/echo", echo),
    route("/echo", echo, "GET"),
    route("/below/{name}", echo),
    route("/read", read),
    route("/breaks", breaks),
    route("/misconfigured", misconfigured),
    route("/contract", breaks_its_contract),
    route("/outage", in_an_outage),
    bounds=Bounds(body=1000, body_idle_s=0.05, body_s=0.2),
)


async def test_it_says_that_it_is_alive():
    answer = await ask(APP, "GET", "/")
    assert (answer.status, answer.json) == (200, {"status": "ok"})
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "path", ["/nope", "/echo/", "/echo/more", "//echo", "/below", "/below/", "/below/a/b", "", "echo"]
)
async def test_where_nothing_is(path):
    answer = await post(APP, path)
    assert (answer.status, answer.code) == (404, "not_found")
    assert path in answer.json["error"]["message"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
async def test_methods_that_it_does_not_take(method):
    answer = await ask(APP, method, "/echo")
    assert (answer.status, answer.code, answer.headers["allow"]) == (405, "wrong_method", "GET, HEAD, POST")
    assert (await ask(APP, method, "/read")).headers["allow"] == "POST"


async def test_head_is_get_without_the_body():
    got, head = await ask(APP, "GET", "/"), await ask(APP, "HEAD", "/")
    assert (head.status, head.body) == (200, b"")
    assert head.headers == got.headers
    assert (await ask(APP, "HEAD", "/read")).status == 405
    missing = await ask(APP, "HEAD", "/nope")
    assert (missing.status, missing.body) == (404, b"")
    assert int(missing.headers["content-length"]) > 0


async def test_the_place_of_a_name_in_the_path():
    assert (await post(APP, "/below/%2e%2e ü")).json["place"] == {"name": "%2e%2e ü"}


@pytest.mark.parametrize("before", ["/ng-rollout/7-0-a2", "/ng-rollout/x.y_z/training-token-capture", ""])
async def test_the_prefix_that_names_a_rollout_is_left_out(before):
    assert (await post(APP, f"{before}/echo")).json["path"] == "/echo"


@pytest.mark.parametrize(
    "before", ["/ng-rollout", "/ng-rollout/", "/ng-rollout/.x", "/ng-rollout/a/b", "/ng-rollout/a%20b"]
)
async def test_what_is_no_such_prefix_is_nothing(before):
    assert (await post(APP, f"{before}/echo")).status == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"nope", 400),
        (b'{"a": NaN}', 400),
        (b'{"a": Infinity}', 400),
        (b'{"a": "\\ud800"}', 400),
        (b'{"a": "\xed\xa0\x80"}', 400),
        (b'{"a": "\xff"}', 400),
        (b'{"a": "\x00"}', 400),
        (b"\xef\xbb\xbf{}", 400),
        (b'{"a": 1} {"b": 2}', 400),
        (b"null", 422),
        (b"[]", 422),
        (b'{"a": "x"}', 422),
        (b'{"a": 1e999}', 422),
        (b'{"a": ' + b"9" * 5000 + b"}", 422),
        (b'{"a": 1, "a": 2}', 200),
        (b' {"a": 1} ', 200),
        (b"{}", 200),
    ],
)
async def test_bodies_that_are_no_json_or_not_what_is_asked_for(body, status):
    answer = await post(app_of(route("/read", read)), "/read", body)
    assert answer.status == status, answer
    assert status == 200 or answer.code in ("not_json", "invalid")


@pytest.mark.parametrize("body", [b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b'{"a":' + b"[" * 1_000_000])
async def test_bodies_of_any_depth(body):
    async def keep(request: Request) -> Answer:
        return answer_json(request.read(dict[str, Raw]))

    answer = await post(app_of(route("/keep", keep)), "/keep", body)
    assert (answer.status, answer.code) == (400, "not_json")


async def test_text_that_is_not_utf8_is_refused_also_where_nobody_reads_it():
    assert (await post(APP, "/echo", b"\xff")).code == "not_json"


async def test_a_body_that_is_declared_too_long_is_never_read():
    asked = Asked(APP, "POST", "/echo", b"", [("Content-Length", "1001")])
    answer = await asked.answer()
    assert (answer.status, answer.code) == (413, "too_large")
    assert asked._inbox.qsize() == 1


async def test_a_body_that_becomes_too_long_is_not_read_to_its_end():
    asked = Asked(APP, "POST", "/echo")
    asked._inbox.get_nowait()
    for _ in range(100):
        asked._inbox.put_nowait({"type": "http.request", "body": b"x" * 300, "more_body": True})
    answer = await asked.answer()
    assert (answer.status, answer.code) == (413, "too_large")
    assert asked._inbox.qsize() == 96


@pytest.mark.parametrize("length", ["-1", "x", "1e3", "", "²"])
async def test_a_length_that_is_none_is_not_believed(length):
    assert (await post(APP, "/echo", b"{}", [("Content-Length", length)])).json["size"] == 2


async def test_the_largest_body_may_come():
    assert (await post(APP, "/echo", b" " * 1000)).json["size"] == 1000
    assert (await post(app_of(route("/echo", echo)), "/echo", b" " * (64 * 2**20))).json["size"] == 64 * 2**20
    assert (await post(app_of(route("/echo", echo)), "/echo", b" " * (64 * 2**20 + 1))).status == 413


async def test_a_body_that_does_not_come():
    asked = Asked(APP, "POST", "/echo")
    asked._inbox.get_nowait()
    asked._inbox.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
    answer = await asked.answer()
    assert (answer.status, answer.code) == (408, "slow")


async def test_a_body_that_comes_drop_by_drop():
    asked = Asked(APP, "POST", "/echo")
    asked._inbox.get_nowait()

    async def drip() -> None:
        while True:
            asked._inbox.put_nowait({"type": "http.request", "body": b" ", "more_body": True})
            await asyncio.sleep(0.01)

    dripping = asyncio.create_task(drip())
    answer = await asked.answer()
    dripping.cancel()
    assert answer.status == 408


async def test_a_client_that_goes_away_before_its_body_has_come():
    asked = Asked(APP, "POST", "/echo")
    asked._inbox.get_nowait()
    asked.leave()
    assert await asked.answer() is None


async def test_a_client_that_goes_away_ends_the_work_for_it():
    began, ended = asyncio.Event(), asyncio.Event()

    async def play(_: Request) -> Answer:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    asked = Asked(app_of(route("/play", play, long=True)), "POST", "/play")
    answering = asyncio.create_task(asked.answer())
    await began.wait()
    asked.leave()
    assert await answering is None
    assert ended.is_set()


async def test_a_server_that_stops_tells_its_client():
    began = asyncio.Event()

    async def play(_: Request) -> Answer:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    asked = Asked(app_of(route("/play", play, long=True)), "POST", "/play")
    answering = asyncio.create_task(asked.answer())
    await began.wait()
    answering.cancel()
    answer = await answering
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "stopping", "1")


async def test_a_fault_of_ours_has_a_number_and_no_secret(caplog):
    with caplog.at_level(logging.ERROR):
        answer = await post(APP, "/breaks")
    assert (answer.status, answer.code) == (500, "internal")
    said = answer.json["error"]["message"]
    assert said.startswith("RuntimeError at test_app.py:")
    number = said.rpartition(" ")[2]
    assert number in caplog.text
    assert "the key is ***" in caplog.text
    assert CANARY not in caplog.text + answer.body.decode()


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [("/misconfigured", 500, "config"), ("/contract", 500, "contract"), ("/outage", 503, "outage")],
)
async def test_what_stops_every_rollout_says_so(path, status, code):
    answer = await post(APP, path)
    assert (answer.status, answer.code) == (status, code)
    assert CANARY not in answer.body.decode()


async def test_who_may_not_speak_learns_nothing():
    closed = app_of(route("/echo", echo), guard=Guard("0.0.0.0", Secret("token-of-tests")))
    for method, path in (("GET", "/"), ("GET", "/openapi.json"), ("POST", "/echo"), ("GET", "/nope"), ("PUT", "/echo")):
        answer = await ask(closed, method, path)
        assert (answer.status, answer.code, answer.headers["www-authenticate"]) == (401, "no_token", "Bearer")
        allowed = await ask(closed, method, path, headers=[("Authorization", "Bearer token-of-tests")])
        assert allowed.status != 401


# Under another server's lifespan.


async def lifespan(app: App) -> list[str]:
    inbox = asyncio.Queue()
    for what in ("startup", "shutdown"):
        inbox.put_nowait({"type": f"lifespan.{what}"})
    said = []

    async def send(message):
        said.append(message)

    await app({"type": "lifespan"}, inbox.get, send)
    return [json.dumps(message) for message in said]


async def test_the_life_of_a_service_under_any_server():
    happened = []

    @asynccontextmanager
    async def life():
        happened.append("begins")
        yield
        happened.append("ends")

    said = await lifespan(app_of(life=life))
    assert [json.loads(one)["type"] for one in said] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert happened == ["begins", "ends"]
    assert len(await lifespan(app_of())) == 2


@pytest.mark.parametrize("when", ["startup", "shutdown"])
async def test_a_life_that_fails_is_said_without_secrets(when):
    @asynccontextmanager
    async def life():
        if when == "startup":
            raise RuntimeError(CANARY)
        yield
        raise RuntimeError(CANARY)

    said = await lifespan(app_of(life=life))
    assert json.loads(said[-1]) == {"type": f"lifespan.{when}.failed", "message": "***"}


async def test_websockets_are_closed():
    said = []

    async def send(message):
        said.append(message["type"])

    await APP({"type": "websocket"}, asyncio.Queue().get, send)
    assert said == ["websocket.close"]
