import hashlib
import subprocess
import sys
import textwrap
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store.rows import append, begun, die, failed, indexed, opened, rewarded

import rollmill as rm
from rollmill.store.failures import NAME as FAILURES
from rollmill.store.index import NAME, Clusters, Held, Index, NewTask, read_index
from rollmill.store.lines import Place
from rollmill.store.schema import Entry
from rollmill.store.totals import Totals
from rollmill.types import Failure, Slot

NAMES = "abcde"


def entry(
    number: int, repeat: int = 0, reward: float | None = 1.0, *, agent: str = "one", occurrence: int = 0
) -> Entry:
    return Entry(Slot(agent, f"{number:032x}", occurrence, repeat, number, repeat), "done", reward, model="model")


def placed(*entries: Entry) -> list[tuple[Entry, Place]]:
    return [(one, Place(1000 * number, 999)) for number, one in enumerate(entries)]


def added(index: Index, *entries: Entry) -> None:
    with index.transaction():
        index.add(placed(*entries))


@pytest.fixture
def index(tmp_path: Path):
    with Index(tmp_path / NAME) as index:
        yield index


class Model:
    """What an index is, in Python: the reward or the failure of every slot."""

    def __init__(self) -> None:
        self.rewards: dict[tuple[str, int], float] = {}
        self.failures: dict[tuple[str, int], str] = {}

    def reward(self, name: str, repeat: int, value: float) -> None:
        self.rewards.setdefault((name, repeat), value)
        self.failures.pop((name, repeat), None)

    def fail(self, name: str, repeat: int, kind: str) -> None:
        if (name, repeat) not in self.rewards:
            self.failures[name, repeat] = kind


events = st.lists(
    st.one_of(
        st.tuples(st.just("reward"), st.sampled_from(NAMES), st.integers(0, 2), st.sampled_from([0.0, 0.25, 1.0, 3.5])),
        st.tuples(st.just("fail"), st.sampled_from(NAMES), st.integers(0, 2), st.sampled_from(["timeout", "overload"])),
        st.just("restart"),
        st.just("crash"),
        st.just("lose"),
    ),
    max_size=30,
)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=events)
def test_an_index_made_anew_is_the_one_that_grew_and_both_are_right(tmp_path_factory, name, events):
    path = tmp_path_factory.mktemp("run") / name
    folder = path.with_name("a.run")
    model = Model()

    def play(store, event) -> None:
        what, task, repeat, value = event
        if what == "reward":
            model.reward(task, repeat, value)
            append(store, rewarded(task, repeat, NAMES.index(task), value))
        else:
            model.fail(task, repeat, f"model: {value}")
            append(store, failed(task, repeat, NAMES.index(task), value))

    store = begun(path)
    for event in events:
        if not isinstance(event, str):
            play(store, event)
            continue
        if event == "crash":
            die(store)
        else:
            store.close()
        if event == "lose":
            lose(folder)
        store = begun(path)
    store.close()
    with opened(path) as store:
        grown, totals = indexed(store), store.totals
        check(model, grown, totals)
    lose(folder)
    with opened(path) as store:
        check(model, indexed(store), store.totals)
        assert [without_places(row) for row in indexed(store)] == [without_places(row) for row in grown]
        assert same_numbers(store.totals, totals)


def lose(folder: Path) -> None:
    for file in folder.glob(f"{NAME}*"):
        file.unlink()


def without_places(row: tuple) -> tuple:
    # A doubled row that was removed has moved those behind it.
    return row[:6] + row[9:]


def same_numbers(one: Totals, other: Totals) -> bool:
    return (one.rewarded, one.failures, one.stops, one.parts, one.numbers, one.counts) == (
        other.rewarded,
        other.failures,
        other.stops,
        other.parts,
        other.numbers,
        other.counts,
    )


def check(model: Model, rows: list[tuple], totals: Totals) -> None:
    assert len(rows) == len(model.rewards) + len(model.failures)
    assert sorted(row[9] for row in rows if row[9] is not None) == sorted(model.rewards.values())
    assert Counter(row[13] for row in rows if row[13]) == Counter(model.failures.values())
    assert totals.rewarded == len(model.rewards)
    assert totals.failures == dict(Counter(model.failures.values()))
    if model.rewards:
        assert totals.numbers["reward"].total == sum(model.rewards.values())
    if rows:
        part = totals.parts["agent"]["some_agent"]
        assert (part.ended, part.failed) == (len(rows), len(model.failures))


def test_a_batch_with_one_double_in_it_is_indexed_but_for_that(index):
    added(index, entry(1))
    with index.transaction():
        found = index.add([(entry(number), Place(5000 + n, 9)) for n, number in enumerate((0, 1, 2, 2))])
    assert [(one.new, one.doubled) for one in found] == [(True, False), (False, True), (True, False), (False, True)]


def test_the_same_row_read_again_is_no_double(index):
    added(index, entry(0), entry(1))
    with index.transaction():
        assert [(one.new, one.doubled) for one in index.add(placed(entry(0), entry(1)))] == [(False, False)] * 2


def add_each(index: Index, entries: list) -> None:
    with index.transaction():
        for one in entries:
            index.add([one])


def test_an_error_in_the_middle_leaves_what_was_there(index):
    added(index, entry(0))
    broken = [(entry(7), Place(0, 1)), (entry(8), "no place")]
    with pytest.raises(AttributeError):
        add_each(index, broken)
    assert index.held([7]) == {}
    added(index, entry(7))
    assert list(index.held([7])) == [7]


def test_more_tasks_are_looked_up_at_once_than_a_query_takes_values(index):
    keys = [("one", number.to_bytes(16)) for number in range(40_000)]
    with index.transaction():
        rows = index.add_tasks([NewTask(*key, number * 3, given=False) for number, key in enumerate(keys)])
        index.add(placed(*(entry(number) for number in range(0, 40_000, 1000))))
    found = index.tasks([*keys, ("two", keys[0][1]), ("one", b"x" * 16)])
    assert found == dict(zip(keys, rows, strict=True))
    assert len(index.task_rows([row.id for row in rows])) == 40_000
    spread = [*range(0, 400_000, 10), *range(0, 120_000, 3)]
    held = index.held(spread)
    assert sorted(held) == [3 * number for number in range(0, 40_000, 1000)]
    assert held[3000] == {1001: [Held(0, 0, 0, False)]}


def clusters_of(entries: list[Entry]) -> Clusters:
    groups = defaultdict(list)
    for one in entries:
        if one.reward is not None:
            groups[one.slot.agent, one.slot.task].append(one.reward)
    sums = [(sum(rewards), len(rewards)) for rewards in groups.values()]
    return Clusters(
        tasks=len(groups),
        rollouts=sum(count for _, count in sums),
        total=sum(total for total, _ in sums),
        squares=sum(total**2 for total, _ in sums),
        cross=sum(total * count for total, count in sums),
        counts=sum(count**2 for _, count in sums),
        histogram=dict(Counter((len(rewards), sum(r >= 1 for r in rewards)) for rewards in groups.values())),
    )


slots = st.tuples(st.sampled_from(["one", "two"]), st.integers(0, 6), st.integers(0, 1), st.integers(0, 2))
rewards = st.one_of(st.none(), st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]))


@settings(deadline=None)
@given(slots=st.dictionaries(slots, rewards, max_size=40))
def test_rewards_are_summed_by_task(slots):
    entries = [
        entry(number, repeat, reward, agent=agent, occurrence=occurrence)
        for (agent, number, occurrence, repeat), reward in slots.items()
    ]
    with Index(None) as index:
        added(index, *entries)
        assert index.clusters() == clusters_of(entries)
        for agent in ("one", "two"):
            assert index.clusters(agent) == clusters_of([one for one in entries if one.slot.agent == agent])
        assert index.clusters("nobody") == clusters_of([])


def test_failures_and_placeholders_are_in_no_cluster(index):
    failure = Entry(Slot("one", "f" * 32, 0, 0, 9, 0), "failed", failure=Failure("model", "timeout", "late"))
    added(index, entry(0, reward=None), failure, entry(1, reward=1.5))
    assert index.clusters() == Clusters(1, 1, 1.5, 2.25, 1.5, 1.0, {(1, 1): 1})


def test_the_models_of_an_agent(index):
    added(index, entry(0), Entry(Slot("two", "f" * 32), "done", 1.0, model="other"))
    assert index.models("one") == {"model"}
    assert index.models("two") == {"other"}
    assert index.models("nobody") == set()


def test_there_is_nothing_to_read_before_there_is_an_index(tmp_path):
    assert read_index(tmp_path / NAME) is None
    (tmp_path / NAME).touch()
    assert read_index(tmp_path / NAME) is None
    assert [file.name for file in tmp_path.iterdir()] == [NAME]


def test_what_is_no_index_is_named_with_what_happens_to_it(tmp_path):
    (tmp_path / NAME).write_bytes(b"garbage" * 1000)
    with pytest.raises(rm.ConfigError, match=r"index\.sqlite: not an index: .*the next run .* makes it anew"):
        read_index(tmp_path / NAME)


def test_an_index_of_another_version_is_named(tmp_path):
    with Index(tmp_path / NAME) as index:
        index._connection.execute("PRAGMA user_version = 99")
    with pytest.raises(rm.ConfigError, match="another version"):
        read_index(tmp_path / NAME)
    with Index(tmp_path / NAME) as index:
        added(index, entry(0))
    assert read_index(tmp_path / NAME).clusters().rollouts == 1


def test_reading_changes_nothing(tmp_path):
    path = tmp_path / "some folder #1 %41?" / NAME
    path.parent.mkdir()
    with Index(path) as index:
        added(index, entry(0), entry(1))
        index.note("word", "said")
    before = path.read_bytes()
    with read_index(path) as reader:
        assert reader.clusters().rollouts == 2
        assert reader.about("word") == "said"
        assert reader.about("other") is None
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [NAME]


def test_another_process_reads_it_while_it_is_written(tmp_path):
    path = tmp_path / NAME
    program = textwrap.dedent(
        f"""
        import sys
        from pathlib import Path
        from rollmill.store.index import Index
        from tests.store.test_index import added, entry
        with Index(Path({str(path)!r})) as index:
            for line in sys.stdin:
                first = int(line)
                added(index, *(entry(number) for number in range(first, first + 100)))
                print("done", flush=True)
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as writer:
        for number in range(20):
            print(number * 100, file=writer.stdin)
            if number < 5:
                assert writer.stdout.readline() == "done\n"
        # It goes on writing meanwhile; a reader sees whole transactions, and never fewer than before.
        seen = [500]
        while seen[-1] < 2000:
            with read_index(path) as reader:
                seen.append(reader.clusters().rollouts)
        writer.communicate()
    assert seen == sorted(seen)
    assert all(count % 100 == 0 for count in seen)


def test_a_log_of_failures_that_was_edited_is_read_anew(tmp_path):
    path = tmp_path / "a.jsonl"
    with opened(path) as store:
        append(store, failed("a", 0, 0), failed("b", 0, 1))
    log = path.with_name("a.run") / FAILURES
    log.write_bytes(log.read_bytes().splitlines(keepends=True)[1])
    with opened(path) as store:
        assert store.totals.failed == 1
        assert len(indexed(store)) == 1


def test_looking_up_any_number_of_tasks_takes_few_different_queries(index):
    with index.transaction():
        ids = [row.id for row in index.add_tasks([NewTask(*key(n), n, given=False) for n in range(600)])]
    lengths = set()
    index._connection.set_trace_callback(lambda query: lengths.add(query.count(",")))
    for count in (*range(1, 40), 511, 512, 513, 600):
        assert list(index.task_rows(ids[:count])) == ids[:count]
    index._connection.set_trace_callback(None)
    assert len(lengths) <= 10


# Tasks in memory, and those that are sorted in.


def key(number: int) -> tuple[str, bytes]:
    return "one", hashlib.blake2b(number.to_bytes(4, "big"), digest_size=16).digest()


def add_tasks(index: Index, numbers: range) -> None:
    for first in numbers[::500]:
        with index.transaction():
            some = range(first, min(first + 500, numbers.stop))
            index.add_tasks([NewTask(*key(n), n, given=False, asked=1) for n in some])


@pytest.mark.parametrize("count", [2047, 2048, 4095, 4096, 4097, 30_000])
def test_a_task_is_found_wherever_it_is(tmp_path, count):
    index = Index(tmp_path / NAME)
    add_tasks(index, range(count))
    assert len(index._recent) < 4096
    for one in (index, Index(tmp_path / NAME)):
        found = one.tasks(map(key, range(count + 5)))
        assert {name: row.task_index for name, row in found.items()} == {key(n): n for n in range(count)}
        assert one.tasks([("two", key(0)[1])]) == {}
        one.close()


def test_what_is_asked_for_more_often_is_known_wherever_the_task_is(tmp_path):
    index = Index(tmp_path / NAME)
    add_tasks(index, range(20_000))
    some = [key(0), key(19_999)]
    with index.transaction():
        index.raise_asked({name: row._replace(asked=7) for name, row in index.tasks(some).items()}, "run")
    for one in (index, Index(tmp_path / NAME)):
        assert [one.tasks([name])[name].asked for name in some] == [7, 7]
        one.close()


def undone(index: Index) -> None:
    with index.transaction():
        index.add_tasks([NewTask(*key(n), n, given=False) for n in range(10_000, 20_000)])
        raise KeyError


def test_tasks_of_a_transaction_that_failed_are_unknown(tmp_path):
    index = Index(tmp_path / NAME)
    add_tasks(index, range(10_000))
    with pytest.raises(KeyError):
        undone(index)
    assert len(index.tasks(map(key, range(20_000)))) == 10_000
    add_tasks(index, range(10_000, 20_000))
    assert len(index.tasks(map(key, range(20_000)))) == 20_000
    index.close()
