"""The floor: the same model calls and one line a rollout, with nothing between. Nobody who does the work is faster.

`aiohttp` is how one would write it; `raw` speaks HTTP/1.1 itself, over uvloop and httptools, and shows what is left
when a client library's share is gone. Neither retries, bounds, resumes or checks anything.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import aiohttp
import httptools
import msgspec
import uvloop

Post = Callable[[bytes], Awaitable[bytes]]

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode


async def play(row: dict[str, Any], post: Post) -> dict[str, Any]:
    """Call the model until it calls no tool, and reward the boxed letter."""
    params = row["responses_create_params"]
    said: list[dict[str, Any]] = []
    while True:
        response = decode(await post(encode({**params, "model": "mock", "input": params["input"] + said})))
        said += response["output"]
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        if not calls:
            break
        said += [_tool_output(call) for call in calls]
    text = said[-1]["content"][0]["text"]
    return {**row, "response": {**response, "output": said}, "reward": float("\\boxed{B}" in text)}


def _tool_output(call: dict[str, Any]) -> dict[str, Any]:
    value = sum(map(ord, decode(call["arguments"])["synonym"]))
    output = encode({"synonym_value": value}).decode()
    return {"type": "function_call_output", "call_id": call["call_id"], "output": output}


class Connection(asyncio.Protocol):
    """One connection that stays open, one request at a time."""

    def __init__(self, path: str, host: str) -> None:
        self._head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: "
        self._chunks: list[bytes] = []
        self._answer: asyncio.Future[bytes] | None = None

    async def post(self, body: bytes) -> bytes:
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(f"{self._head}{len(body)}\r\n\r\n".encode() + body)
        return await self._answer

    # What the loop calls.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the server closed the connection"))

    # What the parser calls.

    def on_body(self, chunk: bytes) -> None:
        self._chunks.append(chunk)

    def on_message_complete(self) -> None:
        body, self._chunks = b"".join(self._chunks), []
        if self._answer is not None:
            self._answer.set_result(body)


@asynccontextmanager
async def posts_with_aiohttp(url: str, places: int) -> AsyncIterator[list[Post]]:
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:

        async def post(body: bytes) -> bytes:
            async with session.post(url, data=body) as answer:
                answer.raise_for_status()
                return await answer.read()

        yield [post] * places


@asynccontextmanager
async def posts_raw(url: str, places: int) -> AsyncIterator[list[Post]]:
    parts, loop = urlsplit(url), asyncio.get_running_loop()
    opened = [
        await loop.create_connection(lambda: Connection(parts.path, parts.netloc), parts.hostname, parts.port)
        for _ in range(places)
    ]
    yield [connection.post for _, connection in opened]
    for transport, _ in opened:
        transport.close()


CLIENTS = {"aiohttp": posts_with_aiohttp, "raw": posts_raw}


async def collect(client: str, base_url: str, lines: Iterator[bytes], sink: BinaryIO, places: int) -> list[float]:
    """Play every line, `places` at once; the rewards."""
    rewards: list[float] = []

    async def place(post: Post) -> None:
        for line in lines:
            rollout = await play(decode(line), post)
            sink.write(encode(rollout) + b"\n")
            rewards.append(rollout["reward"])

    async with CLIENTS[client](f"{base_url}/responses", places) as posts:
        await asyncio.gather(*map(place, posts))
    return rewards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with given.input.open("rb") as source, given.out.open("wb") as sink:
        lines = itertools.islice(source, given.limit)
        rewards = uvloop.run(collect(given.client, given.base_url, lines, sink, given.concurrency))
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    print(encode({"rollouts": len(rewards), "reward": mean}).decode())


if __name__ == "__main__":
    main()
