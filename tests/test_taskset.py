"""A taskset is a stream that can be begun again; what is wrong with a row names its place."""

import gzip
import importlib.util
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

import rollmill as rm
from rollmill.taskset import Taskset, read_rows


class Sum(rm.Task):
    answer: int


def row(number: int) -> dict[str, Any]:
    return {"responses_create_params": {"input": f"What is {number} + 0?"}, "answer": number}


def line(number: int) -> str:
    return json.dumps(row(number)) + "\n"


def answers(tasks: Taskset[Sum]) -> list[int]:
    return [task.answer for task in tasks]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.jsonl"


def test_a_file_has_a_task_a_line(path: Path) -> None:
    path.write_text(line(1) + line(2))
    tasks = rm.from_jsonl(path, Sum)
    assert answers(tasks) == [1, 2]
    assert next(iter(tasks)).prompt == (rm.user("What is 1 + 0?"),)


def test_it_can_be_begun_again(path: Path) -> None:
    path.write_text(line(1) + line(2))
    tasks = rm.from_jsonl(str(path), Sum)
    assert answers(tasks) == answers(tasks) == [1, 2]


def test_a_file_is_read_when_it_is_needed_and_as_far_as_it_is_needed(path: Path) -> None:
    tasks = rm.from_jsonl(path, Sum)
    path.write_text(line(1) + "no JSON\n")
    assert next(iter(tasks)).answer == 1
    assert answers(tasks.take(1)) == [1]


def test_blank_lines_a_missing_newline_and_a_mark_at_the_beginning_do_no_harm(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + line(1).encode() + b"\n  \t\r\n" + line(2).encode().strip())
    assert answers(rm.from_jsonl(path, Sum)) == [1, 2]


def test_windows_line_ends_do_no_harm(path: Path) -> None:
    path.write_bytes((line(1) + line(2)).replace("\n", "\r\n").encode())
    assert answers(rm.from_jsonl(path, Sum)) == [1, 2]


def test_an_empty_file_has_no_tasks(path: Path) -> None:
    path.write_text("\n\n")
    assert answers(rm.from_jsonl(path, Sum)) == []


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ("{no JSON}", "not JSON"),
        ('{"answer": 1', "not JSON"),
        ('{"answer": 1}', "the row has no `responses_create_params`"),
        ('{"responses_create_params": {}, "answer": 1}', "`responses_create_params`: .*`input`"),
        ('{"responses_create_params": {"input": "?"}}', "missing required field `answer`"),
        ('{"responses_create_params": {"input": "?"}, "answer": "1"}', r"Expected `int`, got `str` - at `\$.answer`"),
        ('{"responses_create_params": {"input": [{"content": "?"}]}, "answer": 1}', "missing required field `role`"),
        ('{"responses_create_params": {"input": "?"}, "answer": 1, "note": "\\ud800"}', "not JSON"),
        ('{"responses_create_params": {"input": "?"}, "answer": 1, "note": ' + "[" * 100_000, "not JSON"),
        ("[1]", "Expected `object`"),
        ("null", "Expected `object`"),
    ],
    ids=lambda text: text[:40],
)
def test_a_bad_row_is_named_by_file_and_line(path: Path, bad: str, what: str) -> None:
    path.write_text(line(1) + "\n" + bad + "\n" + line(2))
    with pytest.raises(rm.ConfigError, match=rf"tasks\.jsonl, line 3: .*{what}"):
        answers(rm.from_jsonl(path, Sum))


@pytest.mark.parametrize("field", [b'"input": "\xff"', b'"input": "x"}, "_ng_note": {"a": "\xff"'])
def test_bytes_that_are_no_text_are_named_too(path: Path, field: bytes) -> None:
    path.write_bytes(line(1).encode() + b'{"responses_create_params": {%b}, "answer": 1}' % field)
    with pytest.raises(rm.ConfigError, match=r"line 2: not JSON"):
        answers(rm.from_jsonl(path, Sum))


def test_a_file_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(rm.ConfigError, match=r"tasks\.jsonl: cannot be read: No such file"):
        answers(rm.from_jsonl(path, Sum))
    with pytest.raises(rm.ConfigError, match="cannot be read: Is a directory"):
        answers(rm.from_jsonl(path.parent, Sum))


def squeezed(ending: str, content: bytes) -> bytes:
    if ending == ".gz":
        return gzip.compress(content)
    return zstandard.ZstdCompressor(write_checksum=True).compress(content)


compressed = pytest.mark.parametrize("ending", [".gz", ".zst"])


@compressed
@pytest.mark.parametrize("count", [1, 7, 20_000])
def test_a_compressed_file_is_read_through_its_decompressor(tmp_path: Path, ending: str, count: int) -> None:
    path = tmp_path / f"tasks.jsonl{ending}"
    path.write_bytes(squeezed(ending, b"".join(line(number).encode() for number in range(count))))
    assert [number for number, _ in read_rows(path)] == list(range(1, count + 1))
    assert answers(rm.from_jsonl(path, Sum).take(3)) == list(range(min(count, 3)))


@compressed
def test_compressed_files_that_were_put_together_are_one(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"tasks.jsonl{ending}"
    # A row may begin in one and end in the other.
    first, second = line(1).encode(), line(2).encode() + line(3).encode()
    path.write_bytes(b"".join(squeezed(ending, part) for part in (first, b"", second[:9], second[9:])))
    assert answers(rm.from_jsonl(path, Sum)) == [1, 2, 3]


@compressed
def test_an_empty_compressed_file_has_no_tasks(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"tasks.jsonl{ending}"
    path.write_bytes(squeezed(ending, b""))
    assert answers(rm.from_jsonl(path, Sum)) == []


@compressed
def test_a_compressed_file_cut_anywhere_is_never_taken_for_a_shorter_one(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"tasks.jsonl{ending}"
    whole = squeezed(ending, b"".join(line(number).encode() for number in range(20)))
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(rm.ConfigError, match=r"tasks\.jsonl\.\w+: (its end is missing|cannot be read)"):
            answers(rm.from_jsonl(path, Sum))


@compressed
def test_a_compressed_file_in_which_a_byte_is_wrong_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"tasks.jsonl{ending}"
    whole = bytearray(squeezed(ending, b"".join(line(number).encode() for number in range(20))))
    whole[len(whole) // 2] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(rm.ConfigError, match=r"tasks\.jsonl\.\w+: "):
        answers(rm.from_jsonl(path, Sum))


@compressed
def test_a_name_that_promises_a_compressed_file_is_taken_at_its_word(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"tasks.jsonl{ending}"
    path.write_text(line(1))
    with pytest.raises(rm.ConfigError, match="cannot be read"):
        answers(rm.from_jsonl(path, Sum))


def test_rows_in_memory_are_tasks_too() -> None:
    tasks = rm.from_rows([row(1), row(2)], Sum)
    assert answers(tasks) == answers(tasks) == [1, 2]


def test_a_function_may_make_rows_without_end() -> None:
    def rows() -> Iterator[dict[str, Any]]:
        return map(row, itertools.count())

    tasks = rm.from_rows(rows, Sum, name="sums")
    assert answers(tasks.take(3)) == answers(tasks.take(3)) == [0, 1, 2]
    assert answers(tasks.shuffle(1, buffer=5).take(3)) == answers(tasks.shuffle(1, buffer=5).take(3))


def test_a_bad_row_in_memory_is_named_too() -> None:
    with pytest.raises(rm.ConfigError, match=r"sums, row 2: .*`answer`"):
        answers(rm.from_rows([row(1), {"responses_create_params": {"input": "?"}}], Sum, name="sums"))


NUMBERS = rm.from_rows(lambda: map(row, range(100)), Sum)


def test_take_takes_what_there_is() -> None:
    assert answers(NUMBERS.take(3)) == [0, 1, 2]
    assert answers(NUMBERS.take(0)) == []
    assert len(answers(NUMBERS.take(1_000))) == 100


@pytest.mark.parametrize("buffer", [1, 7, 100, 10_000])
def test_a_shuffle_loses_nothing_and_is_the_seed_s(buffer: int) -> None:
    shuffled = NUMBERS.shuffle(3, buffer=buffer)
    assert sorted(answers(shuffled)) == list(range(100))
    assert answers(shuffled) == answers(shuffled) == answers(NUMBERS.shuffle(3, buffer=buffer))


def test_seeds_make_different_orders() -> None:
    orders = {tuple(answers(NUMBERS.shuffle(seed))) for seed in range(5)}
    assert len(orders) == 5
    assert tuple(range(100)) not in orders


def test_a_shuffle_can_be_taken_from_and_shuffled_again() -> None:
    assert answers(NUMBERS.shuffle(1).take(5)) == answers(NUMBERS.shuffle(1))[:5]
    assert sorted(answers(NUMBERS.shuffle(1).shuffle(2))) == list(range(100))


def test_a_taskset_is_named_by_where_it_came_from(path: Path) -> None:
    assert rm.from_jsonl(path, Sum).take(1).shuffle().name == str(path)
    assert rm.from_rows([], Sum).name == "rows"


@pytest.mark.skipif(importlib.util.find_spec("datasets") is not None, reason="the extra `data` is installed")
def test_a_hub_without_its_extra_says_what_to_install() -> None:
    tasks = rm.from_hub("example/sums", lambda example: example, Sum)
    with pytest.raises(rm.ConfigError, match=r"pip install 'rollmill\[data\]'"):
        answers(tasks)
