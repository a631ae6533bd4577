"""Answers from a recording."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

import rollmill as rm
from rollmill.errors import ConfigError, ModelError
from rollmill.model import Conversation
from rollmill.models.replay import Fields, Replay, make
from rollmill.types import Tokens, encode, read_item


def about(*said: str, turn: int = 0, **params: Any) -> Conversation:
    items = [rm.user(text) for text in said]
    return Conversation(items, {key: Raw(encode(value)) for key, value in params.items()}, turn=turn)


async def record(path: Path, model: rm.Model, *asked: Conversation) -> list[rm.Reply]:
    async with Replay(path, model=model) as recorder:
        return [await recorder.reply(conversation) for conversation in asked]


async def replay(path: Path, *asked: Conversation) -> list[rm.Reply]:
    async with Replay(path) as model:
        return [await model.reply(conversation) for conversation in asked]


async def test_what_was_recorded_is_answered_again(tmp_path: Path) -> None:
    asked = [about("one", temperature=1), about("one", "two", turn=1), about("three", turn=2)]
    recorded = await record(tmp_path / "calls.jsonl", rm.Scripted("a", "b", "c"), *asked)
    replayed = await replay(tmp_path / "calls.jsonl", *asked)
    assert replayed == recorded
    assert [reply.text for reply in replayed] == ["a", "b", "c"]


async def test_a_reply_comes_back_whole(tmp_path: Path) -> None:
    later = read_item(b'{"type":"later_kind","x":1e400}')
    spoke = rm.call("f", "c", city="Rome").with_tokens(Tokens([1], [2], [-0.5]))
    reply = rm.Reply((later, spoke), rm.Usage(1, 2, 3, 4), rm.Stop.LENGTH, {"id": Raw(b'"resp_7"')})
    await record(tmp_path / "calls.jsonl", rm.Scripted(reply), about("one"))
    (again,) = await replay(tmp_path / "calls.jsonl", about("one"))
    assert (again.usage, again.stop, again.fields["id"]) == (reply.usage, reply.stop, reply.fields["id"])
    assert [bytes(item.json) for item in again.items] == [bytes(item.json) for item in reply.items]
    assert again.items[-1].tokens == Tokens([1], [2], [-0.5])


async def test_an_item_over_several_lines_is_recorded_on_one(tmp_path: Path) -> None:
    wide = read_item(b'{\r\n  "role": "assistant",\n  "content": "a\\nb"\n}')
    await record(tmp_path / "calls.jsonl", rm.Scripted(wide), about("one"), about("two"))
    assert [reply.text for reply in await replay(tmp_path / "calls.jsonl", about("two"))] == ["a\nb"]


async def test_the_same_request_is_answered_as_it_was_each_time(tmp_path: Path) -> None:
    lines = iter(["a", "b"])
    model = rm.Scripted(lambda _: next(lines))
    await record(tmp_path / "calls.jsonl", model, about("one"), about("one"))
    replayed = await replay(tmp_path / "calls.jsonl", *[about("one")] * 4)
    assert [reply.text for reply in replayed] == ["a", "b", "b", "b"]


async def test_the_order_of_different_requests_does_not_matter(tmp_path: Path) -> None:
    asked = [about("one"), about("two", turn=1)]
    await record(tmp_path / "calls.jsonl", rm.Scripted("a", "b"), *asked)
    assert [reply.text for reply in await replay(tmp_path / "calls.jsonl", *reversed(asked))] == ["b", "a"]


async def test_spacing_and_key_order_do_not_make_another_request(tmp_path: Path) -> None:
    def written(item: bytes, tools: bytes) -> Conversation:
        return Conversation((read_item(item),), {"tools": Raw(tools)})

    path = tmp_path / "calls.jsonl"
    await record(path, rm.Scripted("a"), written(b'{"role":"user","content":"hi"}', b'[{"name":"f","strict":true}]'))
    again = written(b'{ "content": "hi", "role": "user" }', b'[{"strict": true, "name": "f"}]')
    assert [reply.text for reply in await replay(path, again)] == ["a"]


@pytest.mark.parametrize("other", [about("two"), about("one", temperature=0), about("one", "one"), about()])
async def test_a_request_that_was_not_recorded_is_refused(tmp_path: Path, other: Conversation) -> None:
    await record(tmp_path / "calls.jsonl", rm.Scripted("a"), about("one"))
    with pytest.raises(ModelError, match=r"calls\.jsonl holds no answer to this request") as caught:
        await replay(tmp_path / "calls.jsonl", other)
    assert (caught.value.failure.kind, caught.value.failure.retryable) == ("caller", False)


async def test_a_recording_grows(tmp_path: Path) -> None:
    path = tmp_path / "of" / "today" / "calls.jsonl"
    await record(path, rm.Scripted("a"), about("one"))
    await record(path, rm.Scripted("b"), about("two"))
    assert [reply.text for reply in await replay(path, about("one"), about("two"))] == ["a", "b"]
    assert len(path.read_bytes().splitlines()) == 2


async def test_a_replay_that_is_entered_again_begins_again(tmp_path: Path) -> None:
    lines = iter(["a", "b"])
    await record(tmp_path / "calls.jsonl", rm.Scripted(lambda _: next(lines)), about("one"), about("one"))
    model = Replay(tmp_path / "calls.jsonl")
    for _ in range(2):
        async with model:
            assert (await model.reply(about("one"))).text == "a"


async def test_the_model_behind_is_entered_and_left(tmp_path: Path) -> None:
    class Backend(rm.Scripted):
        opened = closed = 0

        async def __aenter__(self) -> "Backend":
            self.opened += 1
            return self

        async def __aexit__(self, *_: object) -> None:
            self.closed += 1

    backend = Backend("a", name="backend")
    async with Replay(tmp_path / "calls.jsonl", model=backend) as recorder:
        assert (recorder.name, backend.opened, backend.closed) == ("backend", 1, 0)
        await recorder.reply(about("one"))
    assert (backend.opened, backend.closed) == (1, 1)


async def test_a_failed_call_is_not_recorded(tmp_path: Path) -> None:
    class Busy(rm.Scripted):
        async def reply(self, conversation: Conversation) -> rm.Reply:
            raise ModelError("overload", "busy")

    with pytest.raises(ModelError, match="busy"):
        await record(tmp_path / "calls.jsonl", Busy(), about("one"))
    assert (tmp_path / "calls.jsonl").read_bytes() == b""


async def test_a_rollout_is_played_again_without_the_model(tmp_path: Path) -> None:
    class Weather(rm.Environment[rm.Task]):
        @rm.tool
        def get_weather(self, city: str) -> str:
            """The weather in a city."""
            return f"{city}: rain"

        @rm.reward
        def told(self) -> bool:
            return "rain" in self.trajectory.answer

    async def play(model: rm.Model) -> rm.Rollout:
        return await rm.play(rm.Task.of("sky?"), Weather, rm.ToolAgent(), model)

    scripted = rm.Scripted(rm.call("get_weather", city="Rome"), "It rains: rain.")
    async with Replay(tmp_path / "calls.jsonl", model=scripted) as recorder:
        first = await play(recorder)
    async with Replay(tmp_path / "calls.jsonl", name="scripted") as model:
        second = await play(model)
    assert first.reward is not None
    assert (second.reward, second.response, second.model) == (first.reward, first.response, first.model)


@pytest.mark.parametrize(
    "line",
    [
        b'{"request": "abc", "items": [{"type": "mess',
        b"not json",
        b"",
        b"[]",
        b"{}",
        b'{"request": "\xff", "items": [], "usage": {}, "stop": null, "fields": {}}',
        b'{"request": "abc", "items": [1], "usage": {}, "stop": null, "fields": {}}',
        b'{"request": "abc", "items": [{"type": "message"}], "usage": {}, "stop": null, "fields": {}}',
        b'{"request": "abc", "items": [], "usage": {}, "stop": "soon", "fields": {}}',
    ],
)
async def test_a_line_that_is_none_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "calls.jsonl"
    await record(path, rm.Scripted("a"), about("one"), about("two"))
    with path.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(ConfigError, match=r"calls\.jsonl, line 3: ."):
        await replay(path)


async def test_a_recording_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"calls\.jsonl: cannot be read: No such file"):
        await replay(tmp_path / "calls.jsonl")


async def test_a_recording_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "calls.jsonl").mkdir()
    with pytest.raises(ConfigError, match=r"calls\.jsonl: cannot be written: Is a directory"):
        await record(tmp_path / "calls.jsonl", rm.Scripted("a"))


async def test_a_recorder_is_entered_before_it_is_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="async with"):
        await Replay(tmp_path / "calls.jsonl", model=rm.Scripted("a")).reply(about("one"))


async def test_is_made_from_a_configuration(tmp_path: Path) -> None:
    await record(tmp_path / "calls.jsonl", rm.Scripted("a"), about("one"))
    async with make(Fields(str(tmp_path / "calls.jsonl"), model="gpt-x")) as model:
        assert (await model.reply(about("one"))).text == "a"
    assert model.name == "gpt-x"
    assert make(Fields("calls.jsonl")).name == "replay"
