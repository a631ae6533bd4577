"""Every kind of service under fire: Schemathesis on its own description, and bodies that no schema describes.

No answer may be a fault of the service, every one must be what the description says, and nothing may be left behind.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.serve.conftest import Heard, post

import rollmill as rm
from rollmill import plugins
from rollmill.environment import opened
from rollmill.errors import RollmillError
from rollmill.model import Conversation
from rollmill.net.connection import Answer
from rollmill.quality.aggregate import aggregate
from rollmill.rollout import Deferred, in_thread, play
from rollmill.serve.agent import AgentService, Player
from rollmill.serve.app import App
from rollmill.serve.client import Client
from rollmill.serve.environment import EnvironmentService
from rollmill.serve.listen import Listener
from rollmill.serve.model import ModelService
from rollmill.serve.remote_agent import Elsewhere, NamedModel, RemoteAgent
from rollmill.serve.remote_environment import RemoteWorld
from rollmill.serve.remote_model import RemoteModel
from rollmill.store.schema import write_row

pytestmark = pytest.mark.slow

ENVIRONMENTS = ("mcqa", "shop", "simple_weather", "arithmetic")
AGENTS = ("mcqa_agent", "shop_agent")


class System:
    """Services of every kind on ports of loopback, in a thread with an event loop of its own."""

    def __init__(self, idle_s: float = 1.0) -> None:
        self._idle_s = idle_s
        self.environments: dict[str, EnvironmentService] = {}
        self.apps: dict[str, App] = {}
        self.ports: dict[str, int] = {}
        self._loop = asyncio.new_event_loop()
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def __enter__(self) -> "System":
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        self._loop.close()

    def do(self, work: Callable[[], Any]) -> Any:
        """Await something where the services live."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(60)

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    @property
    def sessions(self) -> int:
        return sum(len(service.sessions) for service in self.environments.values())

    async def _serve(self) -> None:
        async with AsyncExitStack() as stack:
            model = rm.Scripted(rm.call("take", item="apple"), "The answer is \\boxed{B}, or 4.")
            for name in ENVIRONMENTS:
                kind = plugins.environment(name)
                world = await stack.enter_async_context(opened(kind))
                service = EnvironmentService(name, kind, world, in_thread, aggregate, idle_s=self._idle_s)
                self.environments[name], self.apps[name] = service, service.app
                if f"{name}_agent" in AGENTS:
                    self.apps[f"{name}_agent"] = AgentService(
                        f"{name}_agent", player(kind, world, model), aggregate
                    ).app
            self.apps["policy_model"] = ModelService("policy_model", model).app
            for name, app in self.apps.items():
                listening = socket.create_server(("127.0.0.1", 0))
                self.ports[name] = listening.getsockname()[1]
                await stack.enter_async_context(Listener(app, [listening]))
            self._ready.set()
            await self._stop.wait()


def player(kind: type[rm.Environment], world: Any, model: rm.Model) -> Player:
    async def run(task: rm.Task, **options: Any) -> rm.Rollout:
        return await play(task, world, rm.ToolAgent(max_turns=4), model, **options)

    check = lambda task: kind.check_task(task, {})  # noqa: E731
    return Player(kind.task_type, check, run, lambda task: run(task, judge=Deferred()))


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    descriptors = open_files()
    with System() as system:
        tasks = len(asyncio.all_tasks(system._loop))
        yield system
        # What no client has ended ends with its lease, and with it all that was held for it.
        pause = threading.Event()
        while system.sessions or len(asyncio.all_tasks(system._loop)) > tasks:
            pause.wait(0.05)
    assert open_files() <= descriptors


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def example(name: str) -> dict[str, Any]:
    """A row that can be played."""
    path = Path(rm.__file__).parent / "environments" / name / "data" / "example.jsonl"
    return json.loads(path.read_text().splitlines()[0])


# What the descriptions say, and what they do not.


def fire(url: str, *words: str) -> None:
    command = (
        *(str(Path(sys.executable).with_name("schemathesis")), "run", f"{url}/openapi.json"),
        *("--seed", "1", "--max-examples", "25", "--request-timeout", "10", "--no-color", "--continue-on-failure"),
        # That a row cannot be played is no matter of its schema.
        *("--exclude-checks", "positive_data_acceptance", *words),
    )
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100, env=without_proxies())
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def without_proxies() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}


@pytest.mark.parametrize("name", [*ENVIRONMENTS, "shop_agent", "policy_model"])
def test_its_own_description(system: System, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    fire(system.url(name))


@pytest.mark.parametrize("name", ["shop", "simple_weather"])
def test_its_tools_within_a_session(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    without = ("/seed_session", "/verify", "/close", "/aggregate_metrics", "/{tool}")
    with System(idle_s=600) as system:
        cookie = system.do(lambda: post(system.apps[name], "/seed_session", example(name))).cookie
        words = [word for path in without for word in ("--exclude-path", path)]
        fire(system.url(name), "-H", f"Cookie: {cookie}", *words)
        assert system.sessions == 1
    assert system.sessions == 0


# Bodies that no schema describes.

TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["", "\0", "\x7f", "\u2028", "🦀", "ﷺ", "../..", "{{x}}", "%s%n", "<script>", "\\boxed{B}", "B", "apple"]
    ),
)
NUMBERS = st.one_of(
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0, -0.0, -1, 2**63, -(2**63) - 1, 10**400, 1e308, 5e-324]),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)
KINDS = st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "dream", ""])
FIELDS = st.sampled_from(
    ["role", "content", "name", "arguments", "call_id", "output", "summary", "id", "status", "text"]
)
PARTS = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["output_text", "refusal", "x"]), "text": TEXTS}), max_size=3
)
ITEMS = st.one_of(
    st.builds(
        lambda kind, fields: {"type": kind, **fields}, KINDS, st.dictionaries(FIELDS, VALUES | PARTS, max_size=5)
    ),
    st.builds(lambda content: {"type": "message", "role": "assistant", "content": content}, TEXTS | PARTS),
    st.builds(
        lambda name, arguments: {"type": "function_call", "call_id": "c", "name": name, "arguments": arguments},
        st.sampled_from(["take", "put_back", "get_weather", "steal", ""]),
        st.one_of(TEXTS, VALUES.map(json.dumps)),
    ),
    st.builds(lambda text: {"type": "function_call_output", "call_id": "c", "output": text}, TEXTS | PARTS),
)
# What some parsers take and others do not: a value that stands for itself among those that `json` writes.
ODD = st.sampled_from(
    [
        *(b"NaN", b"-Infinity", b"1e999", b"-1e-999", b"01", b"1.", b".5", b"0x1", b"9" * 5000, b"1" + b"0" * 309),
        *(b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\u0000"', b'"\xff"', b'"\xed\xa0\x80"', b'"\x01"', b'"\\x"', b"'x'"),
        *(b"[" * 990 + b"]" * 990, b"[" * 100_000, b'{"a":' * 990 + b"1" + b"}" * 990, b"{}{}", b"", b"\xef\xbb\xbf{}"),
        *(b'{"a":1,"a":2}', b"undefined", b"// x", b"[1,]", b'{"a"}', b"{1:2}", b"\0", b'"' + b"x" * 100_000 + b'"'),
    ]
)
CUTS = st.tuples(st.floats(0, 1), st.floats(0, 0.2), st.binary(max_size=4))

BOUNDED = settings(
    max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def hostile(row: dict[str, Any], more: Any = st.nothing()) -> Any:
    """Bodies that were made of a row: other fields, other values, bytes that are no JSON, and bits cut out."""
    fields = st.sampled_from([*row, "responses_create_params", "response", "rollmill", "reward", "agent_ref", "_ng_x"])
    changed = st.builds(lambda more: {**row, **more}, st.dictionaries(fields | TEXTS, VALUES | ITEMS, max_size=3))
    whole = st.one_of(changed, VALUES, more).map(json.dumps).map(str.encode)
    replaced = st.builds(lambda field, odd: with_odd(row, field, odd), fields, ODD)
    return st.one_of(whole, replaced, ODD, st.binary(max_size=200), st.builds(cut, whole, CUTS))


def with_odd(row: dict[str, Any], field: str, odd: bytes) -> bytes:
    body = json.dumps({**row, field: "@odd@"}).encode()
    return body.replace(b'"@odd@"', odd)


def cut(body: bytes, at: tuple[float, float, bytes]) -> bytes:
    begin, length, put = at
    start = int(begin * len(body))
    return body[:start] + put + body[start + int(length * len(body)) :]


def sound(answer: Heard, body: bytes) -> None:
    """Neither a fault of the service, nor anything but what clients can read."""
    assert answer.status < 500, (answer, body[:300])
    if answer.headers["content-type"] == "application/json":
        said = json.loads(answer.body, parse_int=str)
        assert answer.status < 400 or said["error"], (answer, body[:300])


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize("path", ["/seed_session", "/verify", "/aggregate_metrics"])
def test_hostile_rows(system: System, name: str, path: str):
    row = example(name) | ({"response": {"output": []}} if path == "/verify" else {})
    judged = st.builds(lambda items: row | {"response": {"output": items}}, st.lists(ITEMS, max_size=6))
    many = st.builds(lambda rows: {"verify_responses": rows}, st.lists(st.dictionaries(TEXTS, VALUES), max_size=4))

    @BOUNDED
    @given(body=hostile(row, {"/verify": judged, "/aggregate_metrics": many}.get(path, st.nothing())))
    def run(body: bytes) -> None:
        sound(system.do(lambda: post(system.apps[name], path, body)), body)

    run()


@pytest.mark.parametrize("path", ["/take", "/put_back", "/nothing", "/close", "/verify"])
def test_hostile_calls_within_a_session(system: System, path: str):
    app, row = system.apps["shop"], example("shop")
    arguments = {"item": "apple", "count": 1}
    calls = st.builds(lambda item, count: {"item": item, "count": count}, TEXTS, NUMBERS)
    judged = st.builds(lambda items: row | {"response": {"output": items}}, st.lists(ITEMS, max_size=6))

    async def once(body: bytes) -> None:
        cookie = (await post(app, "/seed_session", row)).cookie
        sound(await post(app, path, body, cookie=cookie), body)
        sound(await post(app, "/take", arguments, cookie=cookie), body)
        assert (await post(app, "/close", cookie=cookie)).status == 200

    @BOUNDED
    @given(body=hostile(arguments, judged if path == "/verify" else calls))
    def run(body: bytes) -> None:
        system.do(lambda: once(body))

    run()


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("path", ["/run", "/v1/responses"])
def test_hostile_tasks(system: System, name: str, path: str):
    row = example(name.removesuffix("_agent"))
    asked = row["responses_create_params"] if path == "/v1/responses" else row
    talks = st.builds(lambda items: {"input": items}, st.lists(ITEMS, max_size=4))
    rows = talks if path == "/v1/responses" else st.builds(lambda one: row | {"responses_create_params": one}, talks)

    @BOUNDED
    @given(body=hostile(asked, rows))
    def run(body: bytes) -> None:
        sound(system.do(lambda: post(system.apps[name], path, body)), body)

    run()


@pytest.mark.parametrize("stream", [True, False])
def test_hostile_conversations(system: System, stream: bool):
    asked = {"input": "Hello?", "stream": stream, "tools": [], "temperature": 1}
    talks = st.builds(lambda items: asked | {"input": items}, st.lists(ITEMS, max_size=6))

    @BOUNDED
    @given(body=hostile(asked, talks))
    def run(body: bytes) -> None:
        sound(system.do(lambda: post(system.apps["policy_model"], "/v1/responses", body)), body)

    run()


@pytest.mark.parametrize("stream", [True, False])
def test_hostile_chats(system: System, stream: bool):
    roles = st.sampled_from(["user", "system", "developer", "assistant", "tool", "king"])
    fields = st.sampled_from(["content", "tool_calls", "tool_call_id", "reasoning_content", "name"])
    calls = st.lists(
        st.fixed_dictionaries({"id": TEXTS, "function": st.fixed_dictionaries({"name": TEXTS})}), max_size=2
    )
    said = st.builds(lambda role, more: {"role": role, **more}, roles, st.dictionaries(fields, VALUES | PARTS | calls))
    asked = {"messages": [{"role": "user", "content": "Hello?"}], "stream": stream, "tools": []}

    @BOUNDED
    @given(body=hostile(asked, st.builds(lambda talk: asked | {"messages": talk}, st.lists(said, max_size=4))))
    def run(body: bytes) -> None:
        sound(system.do(lambda: post(system.apps["policy_model"], "/v1/chat/completions", body)), body)

    run()


@BOUNDED
@given(
    name=st.sampled_from(["cookie", "host", "origin", "authorization", "content-length", "x-rollmill-turn", "expect"]),
    value=st.one_of(
        st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0"), max_size=60),
        st.sampled_from(
            ["[", "http://[", "http://[::1", "null", "Shop___shop=" + "x" * 5000, ";;;=", "9" * 400, "-1", "NaN"]
        ),
    ),
    path=st.sampled_from(
        ["/seed_session", "/take", "/verify", "/close", "/", "/ng-rollout/x/take", "/ng-rollout/\xff/take"]
    ),
)
def test_hostile_headers(system: System, name: str, value: str, path: str):
    body = json.dumps(example("shop") | {"response": {"output": []}}).encode()
    answer = system.do(lambda: post(system.apps["shop"], path, body, [(name, value)]))
    assert answer.status < 500, (name, value, answer)


# Answers that no service of ours gives.


class Saying:
    """A way to a service that answers the same to everything."""

    def __init__(self, status: int, body: bytes, *, ours: bool) -> None:
        self._answer = Answer(status, {b"x-rollmill": b"1"} if ours else {}, body)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def get(self, url: str) -> Answer:
        return Answer(404, {}, b"")

    async def post(self, url: str, body: bytes, lines: bytes = b"") -> Answer:
        return Answer(200, {}, b"{}") if url.endswith("/seed_session") else self._answer


ROLLOUT = {
    "responses_create_params": {"input": "x"},
    "response": {"output": [{"type": "message", "role": "assistant", "content": "x"}], "usage": {"input_tokens": 1}},
    "reward": 1,
    "reward_components": {"a": 1},
    "metric": 2,
    "usage": {"input_tokens": 1},
    "rollmill": {
        "slot": {"agent": "a", "task": "t", "occurrence": 0, "repeat": 0},
        "stop": "done",
        "model": "m",
        "run": "",
        "turns": 1,
        "tool_calls": 0,
        "attempt": 1,
        "seconds": {},
        "metrics": {"metric": 2.0},
        "added": ["metric"],
        "schema": 1,
    },
    "_ng_task_index": 0,
    "_ng_rollout_index": 0,
}
REPLY = {
    "id": "r",
    "output": ROLLOUT["response"]["output"],
    "usage": {"input_tokens": 1},
    "rollmill": {"fields": ["id"]},
}
FAILED = {"error": {"message": "x", "code": "tool_error"}, "failure": {"where": "tool", "kind": "error", "detail": "x"}}
STATUSES = st.sampled_from([200, 200, 200, 204, 302, 400, 401, 422, 429, 500, 503])
NUMBERED = st.sampled_from(
    [{"slot": 1}, {"added": ["gone"]}, {"metrics": {"x": None}}, {"turns": -1}, {"stop": "x"}, {}]
)


def readable(row: bytes) -> bool:
    """What everybody's parser takes."""
    json.loads(row.decode(), parse_int=str)
    return True


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("who", ["model", "verifier", "agent"])
def test_hostile_answers(who: str, ours: bool):
    row = REPLY if who == "model" else ROLLOUT
    blocks = st.builds(
        lambda more: {**row, "rollmill": {**row["rollmill"], **more}}, NUMBERED | st.dictionaries(TEXTS, VALUES)
    )

    async def once(status: int, body: bytes) -> None:
        client = Client("http://127.0.0.1:1", way=Saying(status, body, ours=ours))
        task = rm.Task.of("x")
        if who == "model":
            reply = await RemoteModel("m", client).reply(Conversation((rm.user("x"),)))
            readable(b"[%b]" % b",".join(bytes(item.json) for item in reply.items))
        elif who == "verifier":
            async with RemoteWorld(client).opened() as world:
                await play(task, world, rm.ToolAgent(), rm.Scripted("x"))
        else:
            rollout = await play(task, Elsewhere, RemoteAgent("a", client), NamedModel("m"))
            assert rollout.failure is not None or readable(write_row(rollout, "run"))

    @BOUNDED
    @given(status=STATUSES, body=hostile(row, blocks) | hostile(FAILED))
    def run(status: int, body: bytes) -> None:
        with suppress(RollmillError):
            asyncio.run(once(status, body))

    run()
