import asyncio
import functools
from contextlib import aclosing, asynccontextmanager

import pytest

import rollmill as rm


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


async def test_a_generator_of_tasks_is_not_read_to_its_end():
    taken = []

    def endless():
        for number in range(10**9):
            taken.append(number)
            yield rm.Task.of(str(number))

    async with aclosing(rm.collect(endless(), Echo, rm.ToolAgent(), rm.Scripted("yes"), places=4)) as rollouts:
        seen = [rollout async for _, rollout in azip(range(20), rollouts)]
    assert len(seen) == 20
    assert len(taken) < 5000


async def azip(some, stream):
    for one in some:
        yield one, await anext(stream)


async def test_no_more_rollouts_run_than_there_are_places():
    class Counting(Echo):
        running = most = 0

        async def setup(self):
            Counting.running += 1
            Counting.most = max(Counting.most, Counting.running)
            await asyncio.sleep(0.001)

        async def close(self):
            Counting.running -= 1

    await collected(tasks(60), Counting, rm.ToolAgent(), rm.Scripted("yes"), places=3)
    assert Counting.most == 3


async def test_a_model_says_how_many_places_it_has():
    class Few(rm.Scripted):
        places = 2
        running = most = 0

        async def reply(self, conversation):
            Few.running += 1
            Few.most = max(Few.most, Few.running)
            await asyncio.sleep(0.001)
            Few.running -= 1
            return await super().reply(conversation)

    await collected(tasks(30), Echo, rm.ToolAgent(), Few("yes"))
    assert Few.most == 2


async def test_what_fails_is_given_too_and_is_done(tmp_path):
    class Broken(Echo):
        def verify(self, task, response):
            raise RuntimeError("no")

    out = tmp_path / "a.jsonl"
    rollouts = await collected(tasks(3), Broken, rm.ToolAgent(), rm.Scripted("yes"), out=out)
    assert [rollout.failure.kind for rollout in rollouts] == ["error"] * 3
    assert await collected(tasks(3), Broken, rm.ToolAgent(), rm.Scripted("yes"), out=out) == []


async def test_a_run_that_was_left_early_is_finished_by_the_next(tmp_path):
    out = tmp_path / "a.jsonl"
    async with aclosing(rm.collect(tasks(20), Echo, rm.ToolAgent(), rm.Scripted("yes"), out=out, places=2)) as rollouts:
        first = await anext(rollouts)
    held = {line for line in out.read_text().splitlines() if line}
    assert held
    rest = await collected(tasks(20), Echo, rm.ToolAgent(), rm.Scripted("yes"), out=out)
    assert first.slot.key not in {rollout.slot.key for rollout in rest}
    assert len(held) + len(rest) == 20
    assert held <= set(out.read_text().splitlines())


async def test_a_second_writer_is_refused(tmp_path):
    out = tmp_path / "a.jsonl"
    async with aclosing(rm.collect(tasks(9), Echo, rm.ToolAgent(), rm.Scripted("yes"), out=out, places=1)) as rollouts:
        await anext(rollouts)
        with pytest.raises(rm.ConfigError, match="is being written by another run"):
            await collected(tasks(9), Echo, rm.ToolAgent(), rm.Scripted("yes"), out=out)


async def test_a_judge_that_the_environment_uses_is_part_of_what_was_made(tmp_path):
    out = tmp_path / "a.jsonl"
    models = {"judge": rm.Scripted("fine")}
    await collected(tasks(1), Echo, rm.ToolAgent(), rm.Scripted("yes"), out=out, models=models)
    with pytest.raises(rm.ConfigError, match=r"other_models was \{'judge': 'scripted'\}, is \{\}"):
        await collected(tasks(2), Echo, rm.ToolAgent(), rm.Scripted("yes"), out=out)
