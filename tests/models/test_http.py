"""The way to a model behind HTTP: every fault by its class, deadlines, replicas, the early check."""

import asyncio
import email.utils
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiohttp import web

from rollmill.errors import ConfigError, ModelError
from rollmill.models import http
from rollmill.models.http import ContextOverflowError, HttpClient
from rollmill.net.connection import CallDeadlines

Serve = Callable[..., Awaitable[Any]]
HINT = "start it, or correct the URL"


async def post(url: str, **options: Any) -> bytes:
    async with HttpClient(url, **options) as client:
        return await client.post("/responses", b"{}")


async def fault(url: str, **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await post(url, **options)
    return caught.value


async def refusal(url: str, **options: Any) -> str:
    """What the early check says of a model that will not work."""
    async with HttpClient(url, **options) as client:
        with pytest.raises(ConfigError) as caught:
            async with asyncio.timeout(5):
                await client.check(HINT)
        return str(caught.value)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def nowhere() -> str:
    return f"http://127.0.0.1:{free_port()}/v1"


@asynccontextmanager
async def raw_server(*said: bytes, then: str = "close") -> AsyncIterator[str]:
    """Bytes on a socket, for what no honest HTTP server would send; then it closes, resets or stalls."""
    over = asyncio.Event()
    answering: set[asyncio.Task[Any] | None] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.add(asyncio.current_task())
        await reader.read(2**16)
        for piece in said:
            writer.write(piece)
            await asyncio.sleep(0.02)
        if then == "stall":
            await over.wait()
        if then == "reset":
            writer.transport.abort()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        over.set()
        server.close()
        await asyncio.gather(*filter(None, answering))


def head(length: int = 1000) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n".encode()


# Calls.


async def test_posts_the_body_below_the_base_url_with_headers_and_query(serve: Serve) -> None:
    server = await serve({"fine": True})
    async with HttpClient(server.url + "/", headers={"api-key": "k"}, query={"api-version": "v"}) as client:
        assert json.loads(await client.post("/responses", b'{"a": 1}')) == {"fine": True}
        await client.post("/tokenize", b"{}", root=True)
    first, second = server.heard
    assert (first.path, first.body, first.query) == ("/v1/responses", b'{"a": 1}', {"api-version": "v"})
    assert first.headers["api-key"] == "k"
    assert first.headers["Content-Type"] == "application/json"
    assert second.path == "/tokenize"


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, "caller", False),
        (401, "denied", False),
        (403, "denied", False),
        (404, "denied", False),
        (408, "timeout", True),
        (413, "caller", False),
        (422, "caller", False),
        (429, "rate_limit", True),
        (500, "overload", True),
        (502, "overload", True),
        (503, "overload", True),
        (504, "timeout", True),
        (524, "timeout", True),
        (529, "overload", True),
    ],
)
async def test_a_status_says_whose_fault_it_is(serve: Serve, status: int, kind: str, retryable: bool) -> None:
    server = await serve((status, {"error": {"message": "not\n  today", "code": "later"}}))
    failure = (await fault(server.url)).failure
    assert (failure.where, failure.kind, failure.retryable) == ("model", kind, retryable)
    assert failure.detail == f"{server.url}/responses answered {status}: not today later"
    assert failure.retry_after_s is None


async def test_a_spent_quota_is_not_a_rate_limit(serve: Serve) -> None:
    server = await serve((429, {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}))
    failure = (await fault(server.url)).failure
    assert (failure.kind, failure.retryable) == ("denied", False)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": "-3"}, 0.0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "250", "Retry-After": "9"}, 0.25),
        ({"Retry-After": "Wed, 01 Jan 2020 00:00:00 GMT"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "nan"}, None),
        ({"retry-after-ms": "soon"}, None),
        ({"retry-after-ms": "soon", "Retry-After": "9"}, 9.0),
        ({}, None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_the_server_says_when_to_come_back(
    serve: Serve, status: int, headers: dict[str, str], seconds: float | None
) -> None:
    server = await serve((status, {"error": {"message": "slow down"}}, headers))
    assert (await fault(server.url)).failure.retry_after_s == seconds


async def test_the_server_names_a_date_to_come_back(serve: Serve) -> None:
    date = email.utils.formatdate(time.time() + 1000, usegmt=True)
    server = await serve((429, b"", {"Retry-After": date}))
    seconds = (await fault(server.url)).failure.retry_after_s
    assert seconds is not None
    assert 900 < seconds <= 1000


@pytest.mark.parametrize(
    "message",
    [
        # OpenAI
        {"error": {"message": "Your input exceeds the context window of this model.", "type": "invalid_request_error",
                   "param": "input", "code": "context_length_exceeded"}},
        {"error": {"message": "This model's maximum context length is 128000 tokens. However, your messages resulted "
                              "in 130001 tokens. Please reduce the length of the messages."}},
        # vLLM, in two forms
        {"object": "error", "type": "BadRequestError", "code": 400,
         "message": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."},
        {"error": {"message": "The decoder prompt (length 5013) is longer than the maximum model length of 4096. "
                              "Make sure that `max_model_len` is no smaller than the number of tokens."}},
        # llama.cpp
        {"error": {"code": 400, "message": "request (5013 tokens) exceeds the available context size (2048 tokens), "
                                           "try increasing it", "type": "exceed_context_size_error",
                   "n_prompt_tokens": 5013, "n_ctx": 2048}},
    ],
)  # fmt: skip
@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_conversation_that_no_longer_fits_is_no_fault(serve: Serve, status: int, message: Any) -> None:
    server = await serve((status, message))
    with pytest.raises(ContextOverflowError):
        await post(server.url)


@pytest.mark.parametrize("status", [401, 429, 500])
async def test_only_a_refused_request_can_be_too_long(serve: Serve, status: int) -> None:
    server = await serve((status, {"error": {"message": "maximum context length"}}))
    assert "maximum context length" in (await fault(server.url)).failure.detail


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "no message"),
        (b"  \n ", "no message"),
        (b"<html>Bad\n\tGateway</html>", "<html>Bad Gateway</html>"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b'{"error": "\xff"}', '{"error": "\ufffd"}'),
        (b'{"error": null}', '{"error": null}'),
        (b'{"error": "plain"}', '{"error": "plain"}'),
        (b'{"error": {"type": "other"}}', "no message"),
        (b'{"detail": "field required"}', '{"detail": "field required"}'),
        (b"[1, 2]", "[1, 2]"),
        (b'{"error": {"message": "cut', '{"error": {"message": "cut'),
    ],
)
async def test_an_error_is_told_in_the_servers_words_whatever_they_are(serve: Serve, body: bytes, said: str) -> None:
    server = await serve((500, body))
    assert (await fault(server.url)).failure.detail == f"{server.url}/responses answered 500: {said}"


@pytest.mark.parametrize("body", [b"x" * 100_000, b'{"error": ' + b"[" * 50_000])
async def test_a_long_error_is_told_in_short(serve: Serve, body: bytes) -> None:
    server = await serve((500, body))
    assert len((await fault(server.url)).failure.detail) < 600


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "Incorrect API key provided: sk-very-secret."}},
        {"error": "sk-very-secret"},
        b"you sent Authorization: Bearer sk-very-secret",
    ],
)
async def test_a_key_that_the_server_repeats_is_not_passed_on(serve: Serve, body: Any) -> None:
    server = await serve((401, body))
    error = await fault(server.url, secret="sk-very-secret")
    assert "***" in str(error)
    assert "sk-very-secret" not in f"{error} {error.failure}"


async def test_a_redirect_is_not_followed(serve: Serve) -> None:
    elsewhere = await serve({"never": "asked"})
    server = await serve((307, b"", {"Location": f"{elsewhere.url}/responses"}))
    failure = (await fault(server.url)).failure
    assert failure.kind == "caller"
    assert "answered 307" in failure.detail
    assert elsewhere.heard == []


# What happens to connections.


async def test_nobody_listens() -> None:
    url = nowhere()
    failure = (await fault(url)).failure
    assert (failure.kind, failure.retryable) == ("transport", True)
    assert failure.detail == f"{url}/responses: Connection refused"


async def test_no_such_host() -> None:
    assert (await fault("http://model.invalid/v1")).failure.kind == "transport"


async def test_plain_http_where_tls_is_expected(serve: Serve) -> None:
    server = await serve({})
    failure = (await fault(server.url.replace("http:", "https:"))).failure
    assert failure.kind == "transport"
    assert "SSL" in failure.detail


@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize("said", [(), (b"HTTP/1.1 200 OK\r\nContent-",), (head(), b'{"output": [')])
async def test_the_connection_breaks(said: tuple[bytes, ...], then: str) -> None:
    async with raw_server(*said, then=then) as url:
        failure = (await fault(url)).failure
    assert (failure.kind, failure.retryable) == ("transport", True)
    assert failure.detail.startswith(f"{url}/responses: ")


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno-number\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
    ],
)
async def test_the_other_side_speaks_something_else(said: bytes) -> None:
    async with raw_server(said) as url:
        assert (await fault(url)).failure.kind == "transport"


@pytest.mark.parametrize(
    ("said", "limits", "waited_for"),
    [
        ((), {"first_byte_s": 0.1, "connect_s": 0.1}, "the first byte"),
        ((head(),), {"idle_s": 0.1}, "the rest of the answer"),
        ((head(), b"{"), {"idle_s": 0.1}, "the rest of the answer"),
        ((head(), *[b" "] * 30), {"total_s": 0.3}, "the rest of the answer"),
        ((), {"total_s": 0.1}, "the first byte"),
    ],
)
async def test_each_phase_has_its_deadline(said: tuple[bytes, ...], limits: dict[str, float], waited_for: str) -> None:
    async with raw_server(*said, then="stall") as url, asyncio.timeout(5):
        failure = (await fault(url, deadlines=CallDeadlines(**limits))).failure
    assert (failure.kind, failure.retryable) == ("timeout", True)
    assert failure.detail == f"{url}/responses: gave up waiting for {waited_for}"


async def test_an_answer_that_keeps_coming_outlives_the_idle_deadline() -> None:
    async with raw_server(head(10), *[b" "] * 10) as url:
        assert await post(url, deadlines=CallDeadlines(first_byte_s=5, idle_s=1)) == b" " * 10


async def test_a_deadline_around_the_call_is_the_callers_own() -> None:
    async with raw_server(then="stall") as url, HttpClient(url) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.post("/responses", b"{}")
        assert client.replicas[0].running == 0


async def test_an_answer_without_end_is_cut_off(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_BODY", 2**20)
    server = await serve(b" " * 2**20, b" " * (2**20 + 1))
    assert len(await post(server.url)) == 2**20
    failure = (await fault(server.url)).failure
    assert failure.kind == "malformed"
    assert failure.detail == f"{server.url}/responses answered more than 1 MiB"


async def test_a_call_after_a_failed_one_works(serve: Serve) -> None:
    server = await serve((500, b""), {"fine": True})
    async with HttpClient(server.url) as client:
        with pytest.raises(ModelError):
            await client.post("/responses", b"{}")
        assert await client.post("/responses", b"{}")


# Replicas.


async def test_a_call_goes_where_the_least_is_going_on(serve: Serve) -> None:
    together = asyncio.Barrier(6)

    async def slow(request: web.Request) -> web.Response:
        await together.wait()
        return web.json_response({})

    servers = [await serve(slow) for _ in range(3)]
    async with HttpClient([server.url for server in servers]) as client:
        await asyncio.gather(*(client.post("/responses", b"{}") for _ in range(6)))
    assert [len(server.heard) for server in servers] == [2, 2, 2]
    assert [replica.running for replica in client.replicas] == [0, 0, 0]


async def test_a_conversation_stays_where_it_began(serve: Serve) -> None:
    async def moment(request: web.Request) -> web.Response:
        await asyncio.sleep(0.01)
        return web.json_response({})

    servers = [await serve(moment) for _ in range(2)]

    async def turns(client: HttpClient, conversation: str) -> None:
        for _ in range(5):
            await client.post("/responses", conversation.encode(), conversation=conversation)

    async with HttpClient([server.url for server in servers]) as client:
        await asyncio.gather(*(turns(client, f"conversation {n}") for n in range(8)))
    first, second = ({heard.body for heard in server.heard} for server in servers)
    assert len(first | second) == 8
    assert first.isdisjoint(second)
    assert len(first) == len(second)


async def test_a_failed_call_frees_its_replica() -> None:
    async with HttpClient([nowhere(), nowhere()]) as client:
        with pytest.raises(ModelError):
            await client.post("/responses", b"{}")
        assert [replica.running for replica in client.replicas] == [0, 0]


# Before anything is asked.


@pytest.mark.parametrize(
    "url",
    [
        "", "/v1", "localhost:8000/v1", "127.0.0.1:8000", "ftp://host/v1", "https//host/v1", "http://", "http:///v1",
        "http://:8000/v1", "http://host:port/v1", "http://host:99999/v1", "http://[::1/v1",
    ],
)  # fmt: skip
def test_a_url_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HttpClient(url)
    assert repr(url) in str(caught.value)
    assert "http://HOST:PORT/v1" in str(caught.value)


def test_a_model_has_at_least_one_url() -> None:
    with pytest.raises(ConfigError, match="at least one base URL"):
        HttpClient([])


@pytest.mark.parametrize("key", ["sk-1\n", "sk\r\n-1", "sk-1\0"])
def test_a_key_that_no_header_can_hold_is_refused_at_once(key: str) -> None:
    with pytest.raises(ConfigError, match="Authorization") as caught:
        HttpClient("http://host/v1", headers={"Authorization": f"Bearer {key}"}, secret=key)
    assert "sk" not in str(caught.value)


async def test_a_client_is_entered_before_it_is_used() -> None:
    client = HttpClient(nowhere())
    with pytest.raises(ConfigError, match="async with"):
        await client.post("/responses", b"{}")
    with pytest.raises(ConfigError, match="cannot be reached"):
        await client.check(HINT)
    async with client:
        pass
    with pytest.raises(ConfigError, match="async with"):
        await client.post("/responses", b"{}")


async def test_a_client_can_be_entered_again(serve: Serve) -> None:
    server = await serve({})
    client = HttpClient(server.url)
    for _ in range(2):
        async with client:
            await client.post("/responses", b"{}")
    assert len(server.heard) == 2


async def test_the_check_passes_a_server_that_answers(serve: Serve) -> None:
    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [], "asked": request.path_qs})

    server = await serve(models)
    async with HttpClient(server.url, headers={"api-key": "k"}, query={"api-version": "v"}) as client:
        await client.check(HINT)
    (heard,) = server.heard
    assert (heard.path, heard.query, heard.headers["api-key"]) == ("/v1/models", {"api-version": "v"}, "k")


async def test_the_check_passes_a_server_without_a_list_of_models(serve: Serve) -> None:
    server = await serve({"only": "posts"}, {})
    async with HttpClient(server.url) as client:
        await client.check(HINT)


async def test_the_check_says_what_cannot_be_reached_and_what_to_do() -> None:
    url = nowhere()
    assert await refusal(url) == f"the model at {url} cannot be reached (Connection refused); {HINT}"


@pytest.mark.parametrize("status", [401, 403])
async def test_the_check_says_that_the_key_is_refused(serve: Serve, status: int) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "no such key: sk-very-secret"}}, status=status)

    server = await serve(refuse)
    said = await refusal(server.url, secret="sk-very-secret")
    assert said == f"the model at {server.url} refuses the key ({status}: no such key: ***); {HINT}"


@pytest.mark.parametrize("said", [(), (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 9\r\n\r\n",)])
async def test_the_check_does_not_wait_for_a_server_that_hangs(
    said: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "CHECK_S", 0.2)
    async with raw_server(*said, then="stall") as url:
        assert await refusal(url) == f"the model at {url} did not answer in 0.2 s; {HINT}"


async def test_the_check_survives_a_server_that_speaks_something_else() -> None:
    async with raw_server(b"SSH-2.0-OpenSSH_9.9\r\n") as url:
        assert "cannot be reached" in await refusal(url)


async def test_the_check_takes_no_key_elsewhere(serve: Serve) -> None:
    elsewhere = await serve({})

    async def redirect(request: web.Request) -> web.Response:
        raise web.HTTPFound(f"{elsewhere.url}/models")

    server = await serve(redirect)
    async with HttpClient(server.url, headers={"api-key": "k"}) as client:
        await client.check(HINT)
    assert elsewhere.heard == []


async def test_one_replica_that_lives_is_enough(serve: Serve) -> None:
    server = await serve({})
    async with HttpClient([nowhere(), server.url]) as client:
        await client.check(HINT)


async def test_one_replica_that_refuses_the_key_is_too_many(serve: Serve) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=401)

    lives, refuses = await serve({}), await serve(refuse)
    async with HttpClient([lives.url, refuses.url]) as client:
        with pytest.raises(ConfigError, match="refuses the key"):
            await client.check(HINT)


async def test_a_replica_that_is_down_rests_while_the_others_work(serve: Serve) -> None:
    server = await serve({"ok": True})
    async with HttpClient(["http://127.0.0.1:9/v1", server.url]) as client:
        outcomes = [await outcome(client, str(number)) for number in range(20)]
    assert outcomes.count("transport") == 1
    assert outcomes.count("answered") == 19


async def test_a_conversation_moves_when_its_replica_is_down(serve: Serve) -> None:
    server = await serve({"ok": True})
    async with HttpClient(["http://127.0.0.1:9/v1", server.url]) as client:
        assert [await outcome(client, "one") for _ in range(3)] == ["transport", "answered", "answered"]


async def outcome(client: HttpClient, conversation: str) -> str:
    try:
        await client.post("/responses", b"{}", conversation=conversation)
    except ModelError as error:
        return error.failure.kind
    return "answered"
