import pytest

from rollmill.store.log import KEPT, RotatingFile, RunLog


def held(path) -> dict[str, list[str]]:
    return {one.name: one.read_text().splitlines() for one in sorted(path.parent.iterdir())}


def test_a_file_begins_anew_when_it_is_long_and_the_last_ones_are_kept(tmp_path):
    path = tmp_path / "folder/log.txt"
    file = RotatingFile(path, longest=20)
    for number in range(23):
        file.write(f"line {number:02}")
    # Two lines fit.
    assert held(path) == {
        "log.txt": ["line 22"],
        "log.txt.1": ["line 20", "line 21"],
        "log.txt.2": ["line 18", "line 19"],
        "log.txt.3": ["line 16", "line 17"],
    }
    assert len(held(path)) == KEPT + 1


def test_a_line_that_is_longer_than_a_file_is_written_all_the_same(tmp_path):
    path = tmp_path / "log.txt"
    file = RotatingFile(path, longest=20)
    for line in ("a", "b" * 50, "c"):
        file.write(line)
    assert held(path) == {"log.txt": ["c"], "log.txt.1": ["b" * 50], "log.txt.2": ["a"]}


def test_a_file_that_somebody_moves_away_is_begun_anew(tmp_path):
    path = tmp_path / "log.txt"
    file = RotatingFile(path)
    file.write("one")
    path.rename(tmp_path / "elsewhere")
    file.write("two")
    assert held(path) == {"elsewhere": ["one"], "log.txt": ["two"]}


@pytest.mark.parametrize("hinder", ["folder", "gone"])
def test_what_cannot_be_written_is_no_reason_to_stop(tmp_path, hinder):
    path = tmp_path / "folder/log.txt"
    file = RotatingFile(path)
    if hinder == "gone":
        path.parent.rmdir()
    else:
        path.mkdir()
    file.write("lost")


def test_a_run_goes_on_in_the_log_of_the_one_before_with_the_time_of_each_line(tmp_path):
    RunLog(tmp_path).line("one \ud800")
    RunLog(tmp_path).line("two")
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["one ?", "two"]
    assert all(line[4] == "-" and line[19:25] == "+00:00" for line in lines)
