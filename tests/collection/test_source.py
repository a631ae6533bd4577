import pytest

import rollmill as rm
from rollmill.collection.source import Player, Procedure, RowFile
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


GOOD = '{"responses_create_params": {"input": "1+1"}, "answer": 2}\n'


def test_rows_go_to_the_agent_that_they_name(tmp_path):
    other = GOOD.replace("}, ", '}, "agent_ref": {"name": "other"}, ', 1)
    rows = source(tmp_path, GOOD + "\n" + other)
    assert [planned.agent for planned in rows] == ["default", "other"]
    assert [planned.task.answer for planned in rows] == [2, 2]
    survey = rows.survey()
    assert survey.agents == {"default": 1, "other": 1}


def test_the_indices_that_rows_bring_are_known_beforehand(tmp_path):
    given = [GOOD.strip()[:-1] + f', "_ng_task_index": {index}}}\n' for index in (4, 7, 4)]
    assert source(tmp_path, GOOD + "".join(given)).survey().indices == {4, 7}


def test_a_limit_is_a_limit_of_tasks(tmp_path):
    assert source(tmp_path, GOOD * 5, limit=3).survey().agents.total() == 3


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


def test_a_file_without_a_task_is_said(tmp_path):
    with pytest.raises(rm.ConfigError, match="there is no task in it"):
        source(tmp_path, "\n\n").survey()


def test_a_file_that_is_no_text_is_said(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b"\xff\xfe\x00\x01\n")
    with pytest.raises(rm.ConfigError, match="line 1: not JSON"):
        RowFile(path, route).survey()


def test_a_procedure_makes_as_many_as_are_wanted():
    made = Procedure("agent", lambda: (Sum.of(f"{n}+1", answer=n + 1) for n in range(10**9)), 3)
    assert [planned.task.answer for planned in made] == [1, 2, 3]
    assert made.survey().agents == {"agent": 3}
