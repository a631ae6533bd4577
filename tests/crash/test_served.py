"""The scripted model server itself: what it was told is what it does, twice the same, and it can say so afterwards."""

import asyncio
import re
import time
from collections import Counter

import aiohttp
import pytest
from tests.crash.check import check_waits
from tests.crash.rows import secret
from tests.crash.script import Script
from tests.crash.served import served

LIMIT = aiohttp.ClientTimeout(total=0.5)
UNHURRIED = aiohttp.ClientTimeout(total=60)


def body(number: int) -> dict:
    return {"model": "mock", "input": [{"role": "user", "content": f"Errand {number}"}]}


async def post(url: str, *numbers: int, timeout=LIMIT) -> list[str]:
    """What becomes of a request for each of these errands, in short."""

    async def one(number: int) -> str:
        try:
            async with session.post(f"{url}/responses", json=body(number)) as answer:
                text = await answer.text()
                return text if answer.status == 200 else str(answer.status)
        except (aiohttp.ClientError, TimeoutError) as error:
            return type(error).__name__

    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=50)) as session:
        return await asyncio.gather(*map(one, numbers))


async def test_an_errand_is_looked_up_and_then_told(tmp_path):
    with served(tmp_path) as server:
        (call,) = await post(server.url, 7)
        assert '"name":"look"' in call
        assert '{\\"number\\": 7}' in call
        output = {"type": "function_call_output", "call_id": "call_7_0", "output": "7: abc"}
        async with aiohttp.ClientSession() as session:
            asked = body(7)["input"] + [output]
            async with session.post(f"{server.url}/responses", json={"model": "mock", "input": asked}) as answer:
                assert (await answer.json())["output"][0]["content"][0]["text"] == "7: abc"
        assert [(one.number, one.turn, one.said) for one in server.stop()] == [(7, 0, "200"), (7, 1, "200")]


async def test_faults_come_in_their_shares_and_are_the_same_every_time(tmp_path):
    said = []
    for again in range(2):
        folder = tmp_path / str(again)
        folder.mkdir()
        with served(folder, turns=1, seed=3, faults={"500": 0.2, "429": 0.1}) as server:
            await post(server.url, *range(1000), timeout=UNHURRIED)
            said.append({one.number: one.said for one in server.stop()})
    assert said[0] == said[1]
    counts = Counter(said[0].values())
    assert 150 < counts["500"] < 250
    assert 60 < counts["429"] < 140


FAULTS = {
    "429": "429",
    "520": "520",
    "reset": "ServerDisconnectedError|ClientOSError",
    "silent": "TimeoutError",
    "stall": "TimeoutError",
    "trickle": "TimeoutError",
    "truncated": "ClientPayloadError",
    "malformed": "<html>",
    "schema": '"output":5',
    "empty": r'"output":\[\]',
    "nan": "NaN",
    "surrogate": r"\\ud800",
    "arguments": r'"arguments":"{\\"number\\": "',
}


@pytest.mark.parametrize(("fault", "seen"), FAULTS.items())
async def test_a_fault_is_what_its_name_says(tmp_path, fault, seen):
    turns = 2 if fault == "arguments" else 1
    with served(tmp_path, turns=turns, first={fault: 1}) as server:
        (first,) = await post(server.url, 5)
        (second,) = await post(server.url, 5)
    assert re.search(seen, first)
    assert not re.search(seen, second)
    assert [one.said for one in server.asked()] == [fault, "200"]


async def test_a_huge_body_never_ends_in_time(tmp_path):
    with served(tmp_path, turns=1, first={"huge": 1}) as server:
        async with aiohttp.ClientSession() as session, session.post(f"{server.url}/responses", json=body(1)) as answer:
            assert answer.content_length == 100 * 2**20


async def test_who_is_asked_to_wait_hears_for_how_long(tmp_path):
    with served(tmp_path, turns=1, first={"429-date": 1}, retry_after_s=2) as server:
        async with aiohttp.ClientSession() as session, session.post(f"{server.url}/responses", json=body(1)) as answer:
            assert answer.headers["Retry-After"].endswith("GMT")
        await post(server.url, 1)
    with pytest.raises(AssertionError, match="before Retry-After"):
        check_waits(server.asked())


async def test_a_rate_lets_so_many_through(tmp_path):
    with served(tmp_path, turns=1, rate=50, retry_after_s=0.1) as server:
        began = time.monotonic()
        await post(server.url, *range(300), timeout=aiohttp.ClientTimeout(total=10))
        passed = time.monotonic() - began
    let = sum(one.said == "200" for one in server.asked())
    assert let <= 5 + 50 * (passed + 0.1)
    assert let < 300


async def test_it_can_be_away_and_come_back_on_its_port(tmp_path):
    with served(tmp_path, turns=1, away=[(0.2, 0.7)]) as server:
        assert secret(1) in (await post(server.url, 1))[0]
        await asyncio.sleep(0.4)
        assert (await post(server.url, 2)) == ["ClientConnectorError"]
        await asyncio.sleep(0.6)
        assert secret(3) in (await post(server.url, 3))[0]


async def test_a_script_can_be_changed_while_it_runs(tmp_path):
    with served(tmp_path, turns=1, faults={"503": 1.0}) as server:
        assert await post(server.url, 1) == ["503"]
        server.becomes(Script(turns=1))
        await asyncio.sleep(0.2)
        assert secret(1) in (await post(server.url, 1))[0]
