import asyncio
import functools
from contextlib import aclosing, asynccontextmanager

import pytest

import rollmill as rm
from rollmill.launch import LocalWorker


class Echo(rm.Environment[rm.Task]):
    version = "3"

    def verify(self, task, response):
        return float(response.output_text == "yes")


def tasks(count: int) -> list[rm.Task]:
    return [rm.Task.of(f"question {number}") for number in range(count)]


async def collected(*arguments, **options) -> list[rm.Rollout]:
    return [rollout async for rollout in rm.collect(*arguments, **options)]


async def test_collect_gives_every_rollout_once_and_can_be_called_again():
    for _ in range(2):
        rollouts = await collected(tasks(5), Echo, rm.ToolAgent(), rm.Scripted("yes"), repeats=2)
        assert sorted((rollout.slot.task_index, rollout.slot.repeat) for rollout in rollouts) == [
            (task, repeat) for task in range(5) for repeat in range(2)
        ]
        assert all(rollout.reward == rm.Reward(1.0) for rollout in rollouts)


async def test_collect_records_and_goes_on_where_it_stopped(tmp_path):
    out = tmp_path / "a.jsonl"
    assert len(await collected(tasks(3), Echo, rm.ToolAgent(), rm.Scripted("yes"), out=out)) == 3
    more = await collected(tasks(5), Echo, rm.ToolAgent(), rm.Scripted("yes"), out=out)
    assert [rollout.slot.task_index for rollout in more] == [3, 4]
    assert len(out.read_text().splitlines()) == 5


async def test_collect_refuses_another_experiment_on_the_same_output(tmp_path):
    out = tmp_path / "a.jsonl"
    bound = functools.partial(Echo, config={})
    await collected(tasks(1), bound, rm.ToolAgent(), rm.Scripted("yes"), out=out)
    await collected(tasks(2), Echo, rm.ToolAgent(), rm.Scripted("yes"), out=out)
    with pytest.raises(rm.ConfigError, match="sampling was"):
        await collected(tasks(3), Echo, rm.ToolAgent(), rm.Scripted("yes"), out=out, sampling=rm.Sampling(top_p=0.5))

    class Newer(Echo):
        version = "4"

    Newer.__name__ = "Echo"
    with pytest.raises(rm.ConfigError, match="version was '3', is '4'"):
        await collected(tasks(3), Newer, rm.ToolAgent(), rm.Scripted("yes"), out=out)


async def test_leaving_the_loop_early_stops_the_rest():
    asked = []

    async def slowly(conversation):
        asked.append(conversation)
        await asyncio.sleep(0.01)
        return rm.Reply((rm.assistant("yes"),))

    model = rm.Scripted("yes")
    model.reply = slowly
    async with asyncio.timeout(20):
        async with aclosing(rm.collect(tasks(50), Echo, rm.ToolAgent(), model, places=2)) as rollouts:
            async for _ in rollouts:
                await asyncio.sleep(0.2)
                break
    assert len(asked) < 10


async def test_collect_enters_what_an_environment_shares():
    class Sharing(Echo):
        @classmethod
        @asynccontextmanager
        async def shared(cls, config):
            events.append("in")
            yield "an index"
            events.append("out")

        def verify(self, task, response):
            return float(self.shared_value == "an index")

    events = []
    rollouts = await collected(tasks(3), Sharing, rm.ToolAgent(), rm.Scripted("yes"))
    assert [rollout.reward.value for rollout in rollouts] == [1.0] * 3
    assert events == ["in", "out"]


async def test_a_task_that_its_environment_cannot_take_is_named():
    class Strict(Echo):
        async def setup(self):
            raise rm.ConfigError("expected_answer is none of the options")

    with pytest.raises(rm.ConfigError, match="task 0: expected_answer is none of the options"):
        await collected(tasks(1), Strict, rm.ToolAgent(), rm.Scripted("yes"))


async def test_a_failing_plan_reaches_the_reader():
    def plan():
        yield rm.Task.of("one")
        raise rm.ConfigError("tasks.jsonl, line 2: not JSON")

    with pytest.raises(rm.ConfigError, match="line 2"):
        await collected(plan(), Echo, rm.ToolAgent(), rm.Scripted("yes"))


def test_a_worker_takes_as_many_places_as_its_model_can_serve():
    from rollmill.launch import PLACES, Seat

    model = rm.Scripted("yes")
    worker = LocalWorker({"a": Seat(Echo, rm.ToolAgent(), model)}, None, rm.Deadlines())
    assert worker.places == PLACES
    model.places = 3
    assert worker.places == 3
