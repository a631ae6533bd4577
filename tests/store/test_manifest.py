import json
import os

import msgspec
import pytest

import rollmill as rm
from rollmill.store.manifest import Identities, Identity, Segment, changes, new_run, read_manifest

SAME = Identity("model", {"temperature": 0.2}, "mcqa", "1")
HOT = msgspec.structs.replace(SAME, sampling={"temperature": 0.9})


def run(**options):
    return new_run(
        **({"version": "0", "command": ["rollmill"], "durability": "os", "code": {}, "inputs": []} | options)
    )


def started(folder, *, new_segment=False, run=run, **agents) -> Identities:
    """A run on this folder by these agents, up to its beginning."""
    known = Identities(folder, new_segment=new_segment)
    for agent, identity in agents.items():
        known.meet(agent, identity)
    known.begin(run(), {"a": 1})
    return known


def test_the_manifest_says_what_ran(tmp_path):
    known = Identities(tmp_path)
    assert known.fresh
    known.meet("agent", SAME)
    began = known.begin(run(command=["rollmill", "collect"], inputs=["tasks.jsonl (7 bytes)"]), {"a": 1})
    stored = json.loads((tmp_path / "manifest.json").read_bytes())
    assert stored["segments"][0]["agents"]["agent"]["sampling"] == {"temperature": 0.2}
    assert stored["config"] == {"a": 1}
    (only,) = stored["runs"]
    assert (only["id"], only["segment"], only["pid"]) == (began.id, 1, os.getpid())
    assert (only["command"], only["inputs"]) == (["rollmill", "collect"], ["tasks.jsonl (7 bytes)"])
    assert only["started"].endswith("+00:00")


def test_nothing_is_written_before_anything_begins(tmp_path):
    Identities(tmp_path).meet("agent", SAME)
    assert list(tmp_path.iterdir()) == []
    assert read_manifest(tmp_path) is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model": "other"}, "model was 'model', is 'other'"),
        ({"sampling": {}}, "sampling was {'temperature': 0.2}, is {}"),
        ({"environment": "shop"}, "environment was 'mcqa', is 'shop'"),
        ({"version": "2"}, "version was '1', is '2'"),
        ({"environment_config": {"largest": 9}}, "environment_config was {}, is {'largest': 9}"),
        ({"agent_config": {"max_steps": 3}}, "agent_config was {}, is {'max_steps': 3}"),
        ({"other_models": {"judge": "big"}}, "other_models was {}, is {'judge': 'big'}"),
    ],
)
def test_another_experiment_on_the_same_output_is_refused_with_the_fields(tmp_path, changed, words):
    started(tmp_path, agent=SAME)
    before = (tmp_path / "manifest.json").read_bytes()
    with pytest.raises(rm.ConfigError) as error:
        started(tmp_path, agent=msgspec.structs.replace(SAME, **changed))
    assert words in str(error.value)
    assert "+new_segment=true" in str(error.value)
    assert (tmp_path / "manifest.json").read_bytes() == before


def test_every_field_that_differs_is_named():
    other = msgspec.structs.replace(HOT, model="other")
    assert changes(SAME, other) == (
        "model was 'model', is 'other'; sampling was {'temperature': 0.2}, is {'temperature': 0.9}"
    )
    assert changes(SAME, SAME) == ""


def test_the_same_experiment_goes_on_in_its_segment(tmp_path):
    started(tmp_path, agent=SAME)
    assert not Identities(tmp_path).fresh
    started(tmp_path, agent=SAME)
    manifest = read_manifest(tmp_path)
    assert manifest.segments == [Segment({"agent": SAME})]
    assert [one.segment for one in manifest.runs] == [1, 1]


def test_a_change_that_is_meant_begins_a_segment(tmp_path):
    started(tmp_path, agent=SAME)
    started(tmp_path, new_segment=True, agent=HOT)
    manifest = read_manifest(tmp_path)
    assert manifest.segments == [Segment({"agent": SAME}), Segment({"agent": HOT})]
    assert [one.segment for one in manifest.runs] == [1, 2]
    # From then on the new one is what must not change.
    started(tmp_path, agent=HOT)
    with pytest.raises(rm.ConfigError, match="temperature"):
        started(tmp_path, agent=SAME)


def test_a_new_segment_that_changes_nothing_is_none(tmp_path):
    started(tmp_path, agent=SAME)
    started(tmp_path, new_segment=True, agent=SAME)
    assert len(read_manifest(tmp_path).segments) == 1


def test_another_agent_may_join_and_the_first_is_remembered(tmp_path):
    started(tmp_path, one=SAME)
    started(tmp_path, two=msgspec.structs.replace(SAME, environment="shop"))
    assert set(read_manifest(tmp_path).segments[0].agents) == {"one", "two"}
    with pytest.raises(rm.ConfigError, match="of another experiment of one"):
        started(tmp_path, one=msgspec.structs.replace(SAME, model="other"))


def test_an_agent_that_is_met_while_it_runs_is_noted(tmp_path):
    known = started(tmp_path, one=SAME)
    known.meet("two", HOT)
    known.note()
    assert read_manifest(tmp_path).segments == [Segment({"one": SAME, "two": HOT})]
    with pytest.raises(rm.ConfigError, match="of another experiment of two"):
        started(tmp_path, two=SAME)


def test_the_fingerprints_of_the_latest_runs_are_known(tmp_path):
    started(tmp_path, run=lambda: run(code={"one": "aa", "two": "bb"}), one=SAME)
    started(tmp_path, run=lambda: run(code={"one": "cc"}), one=SAME)
    assert Identities(tmp_path).last_code() == {"one": "cc", "two": "bb"}


def test_a_manifest_that_is_none_is_named(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(rm.ConfigError, match=r"manifest\.json: not a manifest"):
        Identities(tmp_path)


def test_the_state_of_the_working_directory_is_recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run().git is None
    for words in (
        *(["init", "-q"], ["config", "user.email", "a@b.c"], ["config", "user.name", "a"]),
        *(["commit", "-q", "--allow-empty", "-m", "one"],),
    ):
        assert os.spawnlp(os.P_WAIT, "git", "git", *words) == 0
    clean = run().git
    assert len(clean) == 40
    (tmp_path / "a.py").write_text("1")
    assert run().git == clean, "what git does not know is no change"
    assert os.spawnlp(os.P_WAIT, "git", "git", "add", "a.py") == 0
    assert run().git == f"{clean}+changes"
