"""A model that answers from a recording; with a model behind it, it makes one."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec
from msgspec import Raw, Struct

from rollmill.errors import ConfigError, ModelError
from rollmill.model import Conversation, Model
from rollmill.types import Reply, Stop, Usage, encode, read_item


class Fields(Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    model: str = "replay"


def make(fields: Fields) -> Replay:
    return Replay(fields.path, name=fields.model)


class _Recorded(Struct):
    """One line of a recording."""

    request: str
    items: list[Raw]
    usage: Usage
    stop: Stop | None
    fields: dict[str, Raw]


class Replay:
    """Answers a request as it was answered when it was recorded; the same request twice, as it was the second time.

    With `model`, every request goes there and its answer is added to the recording.
    """

    def __init__(self, path: str | Path, *, model: Model | None = None, name: str | None = None) -> None:
        self.path = Path(path)
        self.name = name or (model.name if model else "replay")
        self._model = model
        self._answers: dict[str, list[Reply]] = defaultdict(list)
        self._asked: dict[str, int] = defaultdict(int)
        self._file: IO[bytes] | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self._model is None:
            self._read()
            return self
        if isinstance(self._model, AbstractAsyncContextManager):
            await self._stack.enter_async_context(self._model)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._stack.enter_context(self.path.open("ab"))
        except OSError as error:
            await self._stack.aclose()
            raise ConfigError(f"recording {self.path}: cannot be written: {error.strerror}") from None
        return self

    async def __aexit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._stack.aclose()

    async def reply(self, conversation: Conversation) -> Reply:
        key = _key(conversation)
        if self._model is not None:
            reply = await self._model.reply(conversation)
            self._write(key, reply)
            return reply
        answers = self._answers.get(key)
        if not answers:
            raise ModelError("caller", f"{self.path} holds no answer to this request: record it again")
        turn = self._asked[key]
        self._asked[key] += 1
        return answers[min(turn, len(answers) - 1)]

    def _write(self, key: str, reply: Reply) -> None:
        if self._file is None:
            raise ConfigError("the recording is not open: enter it first (`async with model:`)")
        line = _Recorded(key, [item.json for item in reply.items], reply.usage, reply.stop, reply.fields)
        # Formatted: an item may have been written over several lines, and here it has one.
        self._file.write(msgspec.json.format(encode(line), indent=-1) + b"\n")
        self._file.flush()

    def _read(self) -> None:
        try:
            lines = self.path.read_bytes().splitlines()
        except OSError as error:
            raise ConfigError(f"recording {self.path}: cannot be read: {error.strerror}") from None
        self._answers.clear()
        self._asked.clear()
        for number, line in enumerate(lines, 1):
            try:
                entry = msgspec.json.decode(line, type=_Recorded)
                items = tuple(read_item(raw) for raw in entry.items)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ConfigError(f"recording {self.path}, line {number}: {error}") from None
            self._answers[entry.request].append(Reply(items, entry.usage, entry.stop, entry.fields))


def _key(conversation: Conversation) -> str:
    asked = {"items": [item.json for item in conversation.items], "params": dict(conversation.params)}
    # Decoded and sorted, so that spacing and key order do not matter.
    canonical = encode(msgspec.json.decode(encode(asked)), order="sorted")
    return hashlib.blake2b(canonical, digest_size=16).hexdigest()
