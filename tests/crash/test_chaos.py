"""What the long crash runs tell by, themselves: each fault that they look for is noticed."""

import errno
import hashlib
import json
import sqlite3
from pathlib import Path

import pytest
import zstandard
from tests.crash.chaos import compound, full, power, recovery, report, soak
from tests.crash.chaos.trial import Failure, Outcome, Outcomes, Trial, recovered
from tests.crash.check import Found, check_same
from tests.crash.command import Ended
from tests.crash.rows import identity
from tests.crash.script import Asked


def trial(folder: Path, **more) -> Trial:
    return Trial(folder, **{"seed": 1, "scale": 1.0, **more})


# Attempts.


def breaks(place) -> Outcome:
    (place.folder / "evidence").touch()
    raise AssertionError(f"I1: drawn {place.chance.random()}")


def holds(place) -> Outcome:
    return Outcome(rework=place.chance.randrange(1, 9), recovery_s=0.5, measured={"size": 7})


def test_an_attempt_that_broke_something_is_told_with_its_folder_and_how_to_have_it_again(tmp_path, capsys):
    found = trial(tmp_path).play("some", {"good one": holds, "bad one": breaks})
    (failure,) = found.failures
    assert (failure.folder / "evidence").exists()
    assert not (tmp_path / "some" / "good-one").exists()
    assert "tests.crash.chaos some --seed 1 --scale 1 --only 'bad one'" in capsys.readouterr().err
    again = trial(tmp_path, only="bad one").play("some", {"good one": holds, "bad one": breaks})
    assert [one.text for one in again.failures] == [failure.text]
    assert not again.survived


def test_an_error_of_the_attempt_itself_is_a_failure(tmp_path):
    found = trial(tmp_path).play("some", {"bad": lambda place: {}["nothing"]})
    assert "KeyError" in found.failures[0].text


def test_a_smaller_scale_takes_some_evenly(tmp_path):
    assert trial(tmp_path).some(range(10)) == list(range(10))
    assert trial(tmp_path, scale=0.25).some(range(10)) == [0, 4, 8]
    assert trial(tmp_path, scale=0.25, only="x").some(range(10)) == list(range(10))
    assert trial(tmp_path, scale=0.001).count(200) == 1


def test_recovery_lasts_until_the_first_call_of_the_last_start():
    asked = [Asked(at, "key", 1, 0, 0, "200") for at in (1.0, 6.0, 5.5)]
    assert recovered(asked, 5.0) == 0.5
    assert recovered(asked, 7.0) is None


# The report.


def result(part: str, *, notes: tuple[str, ...] = (), failed: bool = False) -> report.Result:
    outcomes = Outcomes([Outcome(3, 0.25), Outcome(None, 0.5)])
    if failed:
        outcomes.failures.append(Failure("name 7", "I1: twice", Path(), "chaos --only 7"))
    return report.Result(part, f"About {part}.", outcomes, 12.0, notes)


def test_a_part_replaces_its_row_and_its_section_alone(tmp_path):
    page, order = tmp_path / "chaos.md", ["one", "two"]
    report.write(result("two", notes=("as it was",)), page, order)
    report.write(result("one"), page, order)
    report.write(result("two", notes=("as it is",)), page, order)
    text = page.read_text()
    assert text.startswith(report.TITLE)
    assert "| one | 2 | 2 | 3 | 0.50 |  |\n| two | 2 | 2 | 3 | 0.50 | as it is |\n" in text
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## one", "## two"]
    assert "as it was" not in text


def test_a_part_without_attempts_and_one_with_a_failure_did_not_pass():
    assert result("one").passed
    assert not result("one", failed=True).passed
    assert not report.Result("none", "", Outcomes(), 0.0).passed


def test_a_failure_is_in_the_report():
    assert "- FAILED: name 7: `chaos --only 7`" in result("one", failed=True).text()


# The same as without a crash.


def rollout(reward: float = 1.0, **more) -> dict:
    about = {"slot": {"task": "a", "occurrence": 0, "repeat": 0}, "run": "of its own"}
    return {"reward": reward, "response": {"output_text": "yes", "id": "its own"}, "rollmill": about, **more}


@pytest.mark.parametrize("other", [rollout(0.5), rollout(_ng_task_index=3), rollout(seed=1)])
def test_what_a_crash_has_changed_is_noticed(other):
    undisturbed = Found([rollout()], [], [])
    check_same(Found([rollout()], [], []), undisturbed)
    for changed in ([other], []):
        with pytest.raises(AssertionError, match="I9: 1 slots"):
            check_same(Found(changed, [], []), undisturbed)


# Recovery.


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.zst"])
def test_good_rows_are_found_in_a_spoiled_output_and_missed(tmp_path, name):
    output = tmp_path / name
    rows = [b'{"number": %d}' % number for number in range(6)]
    content = b"".join(row + b"\n" for row in rows)
    output.write_bytes(zstandard.compress(content) if name.endswith(".zst") else content)
    removed = recovery._spoil(output)
    assert set(recovery.good_lines(output)) == set(rows)
    recovery.check_good(rows, recovery.good_lines(output))
    with pytest.raises(AssertionError, match="I2: 1 good rows are gone"):
        recovery.check_good([*rows, b'{"number": 7}'], recovery.good_lines(output))
    assert all(piece in output.read_bytes() for piece in removed)


def test_what_is_not_in_the_quarantine_is_noticed(tmp_path):
    path = tmp_path / "quarantine.ndjson"
    path.write_text('{"text": "ha\n{"text": "half a li"}\n{"base64": "/w=="}\n')
    recovery.check_quarantine(path, [b"half a li", b"\xff"])
    with pytest.raises(AssertionError, match="garbage"):
        recovery.check_quarantine(path, [b"half a li", b"garbage"])


# Full disks, power, accounts.


@pytest.mark.parametrize(
    ("code", "said", "wrong"),
    [
        (1, "Traceback\nNo space left on device", "Traceback"),
        (1, "Something is wrong", "does not say why"),
        (-9, "No space left on device", "exit code"),
    ],
)
def test_a_run_that_does_not_say_that_the_disk_is_full_is_noticed(code, said, wrong):
    full.check_said(Ended(1, "", "out.jsonl: cannot append: No space left on device"), errno.ENOSPC)
    with pytest.raises(AssertionError, match=wrong):
        full.check_said(Ended(code, "", said), errno.ENOSPC)


def test_how_old_the_oldest_is_that_was_lost(tmp_path):
    sizes = power.Sizes(tmp_path / "out.jsonl")
    sizes.seen = [(1.0, 100), (2.0, 200), (3.0, 300)]
    assert [sizes.lost_s(left, 3.5) for left in (300, 250, 200, 0)] == [0.0, 0.5, 0.5, 2.5]


def test_accounts_that_are_not_those_of_the_files_are_noticed():
    found = Found([rollout()] * 3, [{"final": True}], [])
    line = "Slots: 4 asked for = 3 rewarded (75.0 %) + 1 failed + 0 owed\n"
    compound.check_accounts(Ended(1, line, ""), found, 4)
    for code, said in ((0, line), (1, line.replace("3 r", "4 r")), (1, line.replace("0 owed", "1 owed")), (1, "")):
        with pytest.raises(AssertionError, match="I7"):
            compound.check_accounts(Ended(code, said, ""), found, 4)


# The soak.


def soaked(number: int, reward: float = 1.0, of: int | None = None) -> dict:
    slot = {"task": identity(soak.row(number if of is None else of)), "occurrence": 0, "repeat": 0}
    return soak.row(number) | {"reward": reward, "rollmill": {"slot": slot}}


def written(path: Path, rows: list[dict]) -> bytes:
    path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    return path.read_bytes()


def test_a_soaked_output_is_whole(tmp_path):
    content = written(tmp_path / "a", [soaked(number) for number in range(9)])
    first = content[: content.index(b"\n") + 1]
    kept = [soak.Kept(len(part), hashlib.blake2b(part).hexdigest()) for part in (first, content)]
    soak.check_all(tmp_path / "a", 9, kept)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([soaked(0), soaked(1), soaked(1)], "task 1 is there twice"),
        ([soaked(0), soaked(1)], "1 tasks are missing"),
        ([soaked(0), soaked(1), soaked(3)], "nobody asked for task 3"),
        ([soaked(0), soaked(1), soaked(2, of=1)], "I9: 2 is of"),
        ([soaked(0), soaked(1), soaked(2, reward=0.0)], "task 2 earned 0.0"),
    ],
)
def test_a_soaked_output_that_is_spoiled_is_noticed(tmp_path, rows, said):
    written(tmp_path / "a", rows)
    with pytest.raises(AssertionError, match=said):
        soak.check_all(tmp_path / "a", 3, [])


@pytest.mark.parametrize(("size", "said"), [(1, "has changed"), (10, "has changed"), (10**9, "shorter than at a kill")])
def test_a_soaked_output_that_was_another_at_a_kill_is_noticed(tmp_path, size, said):
    written(tmp_path / "a", [soaked(0)])
    with pytest.raises(AssertionError, match=f"I2: .*{said}"):
        soak.check_all(tmp_path / "a", 1, [soak.Kept(size, "another")])


def test_a_half_line_is_noticed(tmp_path):
    (tmp_path / "a").write_bytes(written(tmp_path / "a", [soaked(0)])[:-1])
    with pytest.raises(AssertionError, match="I3"):
        soak.check_all(tmp_path / "a", 1, [])


def test_an_index_that_counts_otherwise_is_noticed(tmp_path):
    with sqlite3.connect(tmp_path / "index.sqlite") as index:
        index.execute("CREATE TABLE rollout (task)")
        index.executemany("INSERT INTO rollout VALUES (?)", [(1,), (2,), (2,)])
    with pytest.raises(AssertionError, match=r"the index counts \(3, 2\)"):
        soak.check_index(tmp_path / "index.sqlite", 3)
    index.close()
