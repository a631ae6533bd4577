"""Poisoned inputs: the line is named, and what can be played is played where that was asked for."""

import gzip
import json

import pytest
import zstandard
from tests.crash.check import check
from tests.crash.command import Collect
from tests.crash.rows import errand, errands, write_rows


def line(row: dict) -> bytes:
    return json.dumps(row).encode() + b"\n"


GOOD = errands(6)
BAD = {
    "no JSON": b"{not json\n",
    "half a row": line(errand(90))[:60] + b"\n",
    "no object": b"[1, 2, 3]\n",
    "no prompt": b'{"number": 90, "secret": "a", "worth": 0.5}\n',
    "a missing field": line({key: value for key, value in errand(90).items() if key != "worth"}),
    "a field of another type": line(errand(90) | {"number": "ninety"}),
    "a number too large": line(errand(90)).replace(b'"number": 90', b'"number": 1e999'),
    "NaN": line(errand(90, note=float("nan"))),
    "no UTF-8": line(errand(90, note="x")).replace(b'"x"', b'"\xff\xfe"'),
    "NUL bytes": b"\0" * 200 + b"\n",
}


@pytest.fixture
def poisoned(tmp_path, serve):
    def make(content: bytes, name: str = "rows.jsonl") -> Collect:
        (tmp_path / name).write_bytes(content)
        return Collect(tmp_path, serve(turns=1).url, rows=name)

    return make


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_a_bad_row_is_named_or_skipped(poisoned, content):
    rows = [line(row) for row in GOOD]
    collect = poisoned(b"".join([*rows[:3], content, *rows[3:]]))
    ended = collect.run()
    assert ended.code == 2
    assert "rows.jsonl, line 4" in ended.err
    assert "Traceback" not in ended.err
    ended = collect.finish("+skip_bad_rows=true")
    assert "line 4" in ended.err
    check(collect.output, GOOD)


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_an_empty_input_is_refused(poisoned, content):
    ended = poisoned(content).run()
    assert ended.code == 2
    assert "rows.jsonl" in ended.err


def test_a_folder_is_no_input(tmp_path, serve):
    (tmp_path / "rows.jsonl").mkdir()
    ended = Collect(tmp_path, serve(turns=1).url).run()
    assert ended.code == 2
    assert "rows.jsonl" in ended.err


@pytest.mark.parametrize(("ending", "compress"), [(".gz", gzip.compress), (".zst", zstandard.compress)])
def test_compressed_inputs_are_read_and_broken_ones_are_named(poisoned, ending, compress):
    whole = compress(b"".join(map(line, GOOD)))
    collect = poisoned(whole, f"rows.jsonl{ending}")
    collect.finish()
    check(collect.output, GOOD)
    broken = poisoned(whole[: len(whole) // 2], f"broken.jsonl{ending}")
    broken.output = broken.folder / "broken.out.jsonl"
    ended = broken.run("--out", "broken.out.jsonl")
    assert ended.code == 2, ended
    assert "broken.jsonl" in ended.err
    assert "Traceback" not in ended.err


def test_equal_rows_are_played_as_often_as_they_come(tmp_path, serve):
    rows = [errand(1), errand(2), errand(1), errand(1)]
    write_rows(tmp_path / "rows.jsonl", rows)
    collect = Collect(tmp_path, serve(turns=1).url, "--repeats", "2")
    collect.finish()
    assert len(check(collect.output, rows, 2).rewarded) == 8


def test_odd_but_right_rows_are_kept_to_the_letter(tmp_path, serve):
    rows = [
        errand(1, note="\u2028 \u0000 \x7f \U0001f600 e\u0301", **{"key with space": None}),
        errand(2, nested={"a": [[], {}, [1.5, -0.0, 1e300]]}, empty=""),
        errand(3, response="mine", usage=3, big=2**53 + 1),
    ]
    (tmp_path / "rows.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(json.dumps(row).encode() for row in rows))
    collect = Collect(tmp_path, serve(turns=1).url)
    collect.finish()
    played = [json.loads(line) for line in collect.lines()]
    assert len(played) == 3
    kept = {"note", "key with space", "nested", "empty", "big"}
    for row in played:
        given = rows[row["number"] - 1]
        assert {name: row.get(name) for name in kept & given.keys()} == {
            name: given[name] for name in kept & given.keys()
        }


@pytest.mark.slow
def test_a_row_of_fifty_megabytes_is_played_among_others(tmp_path, serve):
    rows = [errand(1), errand(2, padding="x" * 50_000_000), errand(3)]
    write_rows(tmp_path / "rows.jsonl", rows)
    collect = Collect(tmp_path, serve(turns=1).url)
    collect.finish()
    check(collect.output, rows)
