import gzip
import os
import threading

import pytest
import zstandard

import rollmill as rm
from rollmill.collection.source import Given, Player, Procedure, RowFile, Several
from rollmill.collection.stretch import STRETCH
from rollmill.types import AgentRef


class Sum(rm.Task):
    answer: int


def route(ref: AgentRef | None):
    if ref is not None and ref.name == "nobody":
        raise rm.ConfigError("unknown agent 'nobody'")
    return Player(ref.name if ref else "default", Sum, check)


def check(task: Sum) -> None:
    if task.answer < 0:
        raise rm.ConfigError("an answer is positive")


def source(tmp_path, text: str, **options) -> RowFile:
    path = tmp_path / "tasks.jsonl"
    path.write_text(text)
    return RowFile(path, route, **options)


def read(source) -> list:
    return [stretch[place] for stretch in source.stretches() for place in range(len(stretch))]


def answers(source) -> list[int]:
    return [planned.task.answer for planned in read(source)]


def sums(*numbers: int) -> str:
    return "".join(f'{{"responses_create_params": {{"input": "?"}}, "answer": {number}}}\n' for number in numbers)


GOOD = sums(2)


def test_rows_go_to_the_agent_that_they_name(tmp_path):
    other = GOOD.replace("}, ", '}, "agent_ref": {"name": "other"}, ', 1)
    rows = source(tmp_path, GOOD + "\n" + other)
    assert [planned.agent for planned in rows] == ["default", "other"]
    assert [planned.task.answer for planned in rows] == [2, 2]
    survey = rows.survey()
    assert survey.agents == {"default": 1, "other": 1}
    assert survey.tasks == 2


def test_the_indices_that_rows_bring_come_with_them(tmp_path):
    given = GOOD.strip()[:-1] + ', "_ng_task_index": 4, "_ng_rollout_index": 1}\n'
    assert [(planned.task_index, planned.rollout_index) for planned in source(tmp_path, GOOD + given)] == [
        *((None, None), (4, 1))
    ]


def test_a_limit_is_a_limit_of_tasks(tmp_path):
    rows = source(tmp_path, sums(*range(5)), limit=3)
    assert answers(rows) == [0, 1, 2]
    assert rows.survey().tasks == rows.count() == 3


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("{oops", "line 2: not JSON"),
        ('{"answer": 2}', "line 2: the row has no `responses_create_params`"),
        ('{"responses_create_params": {}, "answer": 2}', "line 2: `responses_create_params`: .*`input`"),
        ('{"responses_create_params": {"input": "x"}}', "line 2: .*`answer`"),
        (
            '{"responses_create_params": {"input": "x"}, "answer": "two"}',
            r"line 2: Expected `int`, got `str` - at `\$.ans",
        ),
        (GOOD.strip()[:-1] + ', "agent_ref": {"name": "nobody"}}', "line 2: unknown agent 'nobody'"),
        (GOOD.strip()[:-1] + ', "_ng_task_index": "a"}', r"line 2: Expected `int | null`, got `str` - at `\$._ng_task"),
        (GOOD.strip()[:-1] + ', "_ng_task_index": -1}', r"line 2: Expected `int` >= 0"),
        (GOOD.strip()[:-1] + ', "agent_ref": "x"}', "line 2: Expected `object | null`, got `str`"),
        (GOOD.replace("2}", "-2}").strip(), "line 2: an answer is positive"),
        ("[1]", "line 2: "),
        ('"text"', "line 2: "),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path, row, words):
    with pytest.raises(rm.ConfigError, match=words):
        source(tmp_path, GOOD + row + "\n").survey()


def test_a_bad_row_is_no_end_of_what_follows_it(tmp_path):
    (stretch,) = source(tmp_path, GOOD + "{oops\n" + sums(3)).stretches()
    with pytest.raises(rm.ConfigError, match="line 2"):
        stretch[1]
    assert stretch[2].task.answer == 3


def test_bad_rows_are_no_reason_not_to_begin_where_they_are_skipped(tmp_path):
    rows = source(tmp_path, GOOD + "{oops\n" + GOOD)
    assert rows.survey(skip_bad=True).tasks == 2
    with pytest.raises(rm.ConfigError, match="there is no task in it"):
        source(tmp_path, "{oops\n").survey(skip_bad=True)


def test_a_survey_knows_its_slots(tmp_path):
    other = GOOD.replace("}, ", '}, "agent_ref": {"name": "other"}, ', 1)
    survey = source(tmp_path, GOOD * 3 + other).survey()
    assert survey.slots({"default": 2, "other": 5}.__getitem__) == 11
    assert Given("agent", []).survey().slots(lambda _: 1) is None


def test_a_file_without_a_task_is_said(tmp_path):
    with pytest.raises(rm.ConfigError, match="there is no task in it"):
        source(tmp_path, "\n\n").survey()


def test_a_file_that_is_no_text_is_said(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b"\xff\xfe\x00\x01\n")
    with pytest.raises(rm.ConfigError, match="line 1: not JSON"):
        RowFile(path, route).survey()


def test_compressed_files_are_read_as_they_are(tmp_path):
    text = sums(*range(300)).encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text))
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(text))
    for name in ("a.jsonl.gz", "a.jsonl.zst"):
        rows = RowFile(tmp_path / name, route)
        assert answers(rows) == list(range(300))
        assert rows.survey().tasks == 300
        assert rows.count() is None


def test_a_compressed_file_that_is_cut_is_said(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(sums(*range(3000)).encode())[:-100])
    with pytest.raises(rm.ConfigError, match=r"a\.jsonl\.gz"):
        answers(RowFile(path, route))


def test_rows_are_counted_without_being_parsed(tmp_path):
    assert source(tmp_path, "{oops\n" * 70_000 + "{no end").count() == 70_001


def test_a_large_file_is_not_read_through_before_the_first_task(tmp_path):
    long = ' "story": "%s",' % ("x" * 6000)
    rows = source(tmp_path, sums(*range(3000)).replace(', "answer"', f',{long} "answer"') + "{oops\n")
    survey = rows.survey()
    assert survey.tasks is None
    assert set(survey.agents) == {"default"}
    assert next(iter(rows)).task.answer == 0
    with pytest.raises(rm.ConfigError, match="line 3001"):
        answers(rows)


def test_a_stream_is_read_once_and_not_beforehand(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=[sums(1, 2)])
    writer.start()
    rows = RowFile(path, route)
    assert rows.survey().tasks is None
    assert rows.count() is None
    assert answers(rows) == [1, 2]
    writer.join()


def test_stretches_know_whether_their_rows_have_changed(tmp_path):
    before = [stretch.hash for stretch in source(tmp_path, sums(*range(600))).stretches()]
    after = [stretch.hash for stretch in source(tmp_path, sums(*range(599), 7)).stretches()]
    assert len(before) == len(after) == 3
    assert [then == now for then, now in zip(before, after, strict=True)] == [True, True, False]


def test_fewer_long_rows_are_read_at_once(tmp_path):
    long = sums(*range(40)).replace('"?"', f'"{"x" * 2**17}"')
    lengths = [len(stretch) for stretch in source(tmp_path, long).stretches()]
    assert sum(lengths) == 40
    assert set(lengths[:-1]) == {8}


# Several files.


def several(tmp_path, *numbers: range, limit: int | None = None) -> Several:
    files = []
    for place, some in enumerate(numbers):
        path = tmp_path / f"{place}.jsonl"
        path.write_text(sums(*some))
        files.append(RowFile(path, route))
    return Several(files, limit)


def test_several_files_take_turns(tmp_path):
    rows = several(tmp_path, range(1000), range(1000, 1010), range(2000, 2300))
    found = answers(rows)
    assert sorted(found) == [*range(1010), *range(2000, 2300)]
    assert found.index(1000) == STRETCH
    assert found.index(2000) == STRETCH + 10
    assert rows.survey().tasks == rows.count() == 1310


@pytest.mark.parametrize("limit", [1, STRETCH, STRETCH + 5, 400])
def test_a_limit_is_of_all_files_together(tmp_path, limit):
    rows = several(tmp_path, range(200), range(1000, 1010), limit=limit)
    assert len(answers(rows)) == rows.count() == min(limit, 210)


def test_an_empty_file_among_several_is_said(tmp_path):
    with pytest.raises(rm.ConfigError, match=r"1\.jsonl: there is no task in it"):
        several(tmp_path, range(3), range(0)).survey()


# Tasks that come from elsewhere.


def test_a_procedure_makes_as_many_as_are_wanted():
    made = Procedure("agent", lambda: (Sum.of(f"{n}+1", answer=n + 1) for n in range(10**9)), 3)
    assert answers(made) == [1, 2, 3]
    assert made.survey().agents == {"agent": 3}
    assert made.survey().tasks == made.count() == 3


def test_given_tasks_are_taken_as_they_are_needed():
    taken = []

    def endless():
        for number in range(10**9):
            taken.append(number)
            yield Sum.of("?", answer=number)

    stretches = Given("agent", endless()).stretches()
    assert next(stretches)[0].task.answer == 0
    assert len(taken) < 100
