from pathlib import Path

import pytest

from rollmill.collection.listing import Named, Pattern


def names(listing) -> list[str]:
    return [path.name for path in listing.paths()]


def test_a_file_is_named_also_while_it_is_not_there(tmp_path):
    assert Named(tmp_path / "a.jsonl").paths() == [tmp_path / "a.jsonl"]


def test_a_folder_means_its_row_files_by_their_names(tmp_path):
    for name in ("b.jsonl", "a.jsonl.gz", "c.jsonl.zst", "a.jsonl.tmp", ".d.jsonl", "notes.txt", "a.jsonl.1"):
        (tmp_path / name).touch()
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "e.jsonl").touch()
    assert names(Named(tmp_path)) == ["a.jsonl.gz", "b.jsonl", "c.jsonl.zst"]


def test_a_pattern_is_looked_up_anew_each_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pattern = Pattern("*/part-*.jsonl")
    assert pattern.paths() == []
    for name in ("b/part-1.jsonl", "a/part-2.jsonl", "a/other.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert pattern.paths() == [tmp_path / "a/part-2.jsonl", tmp_path / "b/part-1.jsonl"]


@pytest.mark.parametrize(
    ("listing", "path", "takes"),
    [
        (Named(Path("spool")), "spool/out.jsonl", True),
        (Named(Path("spool")), "spool/out.jsonl.zst", True),
        (Named(Path("spool")), "spool/../spool/out.jsonl", True),
        (Named(Path("spool")), "spool/below/out.jsonl", False),
        (Named(Path("spool")), "out.jsonl", False),
        (Named(Path("a.jsonl")), "a.jsonl", True),
        (Named(Path("a.jsonl")), "b.jsonl", False),
        (Pattern("spool/*.jsonl"), "spool/out.jsonl", True),
        (Pattern("spool/*.jsonl"), "spool/below/out.jsonl", False),
        (Pattern("spool/**/*.jsonl"), "spool/a/b/out.jsonl", True),
        (Pattern("spool/**/*.jsonl"), "spool/out.jsonl", True),
        (Pattern("**"), "anywhere/out", True),
        (Pattern("in-?.jsonl"), "in-1.jsonl", True),
        (Pattern("in-?.jsonl"), "out.jsonl", False),
    ],
)
def test_what_would_be_read_is_known_before_it_is_there(tmp_path, monkeypatch, listing, path, takes):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spool" / "below").mkdir(parents=True)
    assert listing.takes(Path(path)) is takes
