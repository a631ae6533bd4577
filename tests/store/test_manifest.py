import msgspec
import pytest

import rollmill as rm
from rollmill.store.manifest import Identity, begin, refuse_change

SAME = Identity("model", {"temperature": 0.2}, "mcqa", "1")


def started(folder, **agents):
    return begin(folder, version="0", command=["rollmill"], agents=agents, config={"a": 1})


def test_the_manifest_says_what_ran(tmp_path):
    manifest = started(tmp_path, agent=SAME)
    stored = msgspec.json.decode((tmp_path / "manifest.json").read_bytes())
    assert stored["run"] == manifest.run
    assert stored["agents"]["agent"]["sampling"] == {"temperature": 0.2}
    assert stored["config"] == {"a": 1}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model": "other"}, "model was 'model', is 'other'"),
        ({"sampling": {}}, "sampling was {'temperature': 0.2}, is {}"),
        ({"environment": "shop"}, "environment was 'mcqa', is 'shop'"),
        ({"version": "2"}, "version was '1', is '2'"),
    ],
)
def test_another_experiment_on_the_same_output_is_refused_with_the_fields(tmp_path, changed, words):
    started(tmp_path, agent=SAME)
    other = msgspec.structs.replace(SAME, **changed)
    with pytest.raises(rm.ConfigError) as error:
        refuse_change(tmp_path, {"agent": other})
    assert words in str(error.value)


def test_another_agent_may_join_and_the_first_is_remembered(tmp_path):
    started(tmp_path, one=SAME)
    started(tmp_path, two=msgspec.structs.replace(SAME, environment="shop"))
    with pytest.raises(rm.ConfigError):
        refuse_change(tmp_path, {"one": msgspec.structs.replace(SAME, model="other")})


def test_a_manifest_that_is_none_is_named(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(rm.ConfigError, match=r"manifest\.json: not a manifest"):
        refuse_change(tmp_path, {"one": SAME})
