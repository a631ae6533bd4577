"""The same output with something changed: what only adds goes on, what would mix two experiments is refused."""

import json

import pytest
from tests.crash.check import check, look
from tests.crash.command import HERE, Collect
from tests.crash.rows import errands, write_rows
from tests.crash.script import Script

SOURCE = (HERE / "errands.py").read_text()
BEGUN = 16
"""The calls that were made before anything is changed: each rollout is one."""
OTHER_VERSION = SOURCE.replace('verification = "replay"', 'verification = "replay"\n    version = "2"')


@pytest.fixture
def begun(tmp_path, serve):
    """Eight errands that are played, twice each, with an environment of one's own."""
    (tmp_path / "world.py").write_text(SOURCE)
    write_rows(tmp_path / "rows.jsonl", errands(8))
    server = serve(turns=1)
    collect = Collect(tmp_path, server.url, "--repeats", "2", environment="world.py:Errands")
    collect.finish()
    check(collect.output, errands(8), 2)
    return collect, server


def again(begun, rows: list[dict], *words: str, model: str = "mock"):
    """The same collection with other rows and words; how many model calls it made."""
    collect, server = begun
    write_rows(collect.folder / "rows.jsonl", rows)
    other = Collect(collect.folder, server.url, "--repeats", "2", environment="world.py:Errands", model=model)
    ended = other.run(*words)
    return ended, len(server.stop()) - BEGUN


def test_nothing_changed_plays_nothing(begun):
    ended, calls = again(begun, errands(8))
    assert (ended.code, calls) == (0, 0)
    assert "Nothing to do" in ended.out


def test_more_repeats_play_the_difference(begun):
    ended, calls = again(begun, errands(8), "--repeats", "5")
    assert (ended.code, calls) == (0, 24)
    check(begun[0].output, errands(8), 5)


def test_fewer_repeats_play_nothing_and_delete_nothing(begun):
    ended, calls = again(begun, errands(8), "--repeats", "1")
    assert (ended.code, calls) == (0, 0)
    check(begun[0].output, errands(8), 2)


def test_rows_that_are_added_reordered_or_left_out_play_the_difference(begun):
    other = [*reversed(errands(6)), *errands(4, first=20)]
    ended, calls = again(begun, other)
    assert (ended.code, calls) == (0, 8)
    check(begun[0].output, [*errands(8), *errands(4, first=20)], 2)


def test_rows_in_other_words_are_the_same_rows(begun):
    collect, _ = begun
    text = b"".join(json.dumps(row, indent=None, sort_keys=True).encode() + b"\r\n" for row in errands(8))
    write_rows(collect.folder / "rows.jsonl", errands(8))
    (collect.folder / "words.jsonl").write_bytes(text)
    ended, calls = again(begun, errands(8), "--input", "words.jsonl")
    assert (ended.code, calls) == (0, 0)


def test_another_prompt_is_another_task(begun):
    rows = [{**row, "responses_create_params": {"input": f"Errand {row['number']}, please"}} for row in errands(2)]
    ended, calls = again(begun, rows)
    assert (ended.code, calls) == (0, 4)
    check(begun[0].output, [*errands(8), *rows], 2)


def refused(begun, named: str, *words: str, **options) -> None:
    """Refused by name, before anything is asked or written."""
    collect, _ = begun
    before = collect.output.read_bytes()
    ended, calls = again(begun, errands(10), *words, **options)
    assert (ended.code, calls) == (2, 0), ended
    assert named in ended.err
    assert collect.output.read_bytes() == before


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("temperature", ("--temperature", "0.5")),
        ("top_p", ("--top-p", "0.9")),
        ("max_output_tokens", ("+responses_create_params.max_output_tokens=7",)),
        ("max_steps", ("+errands_simple_agent.responses_api_agents.simple_agent.max_steps=3",)),
    ],
)
def test_other_sampling_or_another_agent_is_refused(begun, named, words):
    refused(begun, named, *words)


def test_another_model_is_refused(begun):
    refused(begun, "other-model", model="other-model")


def test_another_version_of_the_environment_is_refused(begun):
    (begun[0].folder / "world.py").write_text(OTHER_VERSION)
    refused(begun, "version")


def test_a_changed_verifier_without_another_version_is_said(begun):
    (begun[0].folder / "world.py").write_text(SOURCE.replace("else 0.0", "else 0.0  # as before"))
    ended, calls = again(begun, errands(9))
    assert (ended.code, calls) == (0, 2)
    assert "changed" in ended.err


def test_a_deliberate_change_is_recorded_as_a_segment(begun):
    collect, _ = begun
    ended, calls = again(begun, errands(10), "--temperature", "0.5", "+new_segment=true")
    assert (ended.code, calls) == (0, 4)
    manifest = json.loads((collect.run_folder / "manifest.json").read_bytes())
    assert len(manifest["segments"]) == 2
    runs = {run["id"]: run["segment"] for run in manifest["runs"]}
    check(collect.output, errands(10), 2)
    segments = [runs[row["rollmill"]["run"]] for row in look(collect.output).rewarded]
    assert sorted(segments) == [1] * 16 + [2] * 4


def test_urls_concurrency_and_limits_are_no_identity(begun):
    collect, server = begun
    server.becomes(Script(turns=1))
    ended, calls = again(begun, errands(9), "--concurrency", "3", "+max_attempts=7", "+outage_s=9", "+grace_s=3")
    assert (ended.code, calls) == (0, 2)
    check(collect.output, errands(9), 2)


def test_a_lost_folder_costs_nothing_but_the_failures(begun):
    collect, _ = begun
    for path in collect.run_folder.iterdir():
        path.unlink()
    collect.run_folder.rmdir()
    ended, calls = again(begun, errands(8))
    assert (ended.code, calls) == (0, 0), ended
