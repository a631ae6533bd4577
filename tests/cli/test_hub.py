"""`rollmill download` and `upload`, and NeMo Gym's names for them, against a hub on loopback."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from tests.cli.hub import FakeHub

TOKEN = "hf_averysecrettoken"  # not anybody's
TRAIN = b'{"responses_create_params":{"input":"x"}}\n'


@pytest.fixture
def hub(shell) -> Iterator[FakeHub]:
    """Every command of this shell sees this hub."""
    server = FakeHub()
    server.files = {"train.jsonl": TRAIN, "data/test.jsonl": b"{}\n", "README.md": b"#", "raw/all.jsonl": b"[]\n"}
    shell.env |= {"HF_ENDPOINT": server.url, "HF_HOME": str(shell.folder / "home")}
    shell.env = {name: value for name, value in shell.env.items() if "proxy" not in name.lower() and name != "HF_TOKEN"}
    yield server
    server.close()


def test_a_file_a_split_and_all_splits_are_fetched(shell, hub):
    (shell.folder / "env.yaml").write_text(f"hf_token: {TOKEN}\n")
    words = ("ng_download_dataset_from_hf", "+repo_id=some/data")
    done = shell.run(*words, "+artifact_fpath=raw/all.jsonl", "+output_fpath=out/mine.jsonl")
    assert (done.returncode, done.stdout) == (0, "Downloaded raw/all.jsonl of some/data to out/mine.jsonl\n")
    assert (shell.folder / "out/mine.jsonl").read_bytes() == b"[]\n"
    done = shell.run("rollmill", "download", "some/data", "--split", "test", "--out-dir", "out")
    assert done.returncode == 0, done.stderr
    assert (shell.folder / "out/test.jsonl").read_bytes() == b"{}\n"
    # What is there and the same stays.
    done = shell.run("nemo_gym_download_dataset_from_hf", "+repo_id=some/data", "+output_dirpath=out")
    assert done.stdout.splitlines() == [
        f"Downloaded {one} of some/data to out/{one}.jsonl" for one in ("train", "test")
    ]
    assert (shell.folder / "out/train.jsonl").read_bytes() == TRAIN
    assert f"Bearer {TOKEN}" in hub.tokens
    assert sorted(path.name for path in (shell.folder / "out").iterdir()) == ["mine.jsonl", "test.jsonl", "train.jsonl"]


def test_what_is_there_is_not_written_over(shell, hub):
    shell.write("train.jsonl", "mine")
    done = shell.run("rollmill", "download", "some/data", "--file", "train.jsonl", "--out", "train.jsonl")
    assert done.returncode == 2
    assert "train.jsonl exists, and is not what some/data has" in done.stderr
    assert (shell.folder / "train.jsonl").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "where does it go? Give output_fpath or output_dirpath"),
        (("+output_fpath=a", "+output_dirpath=b"), "output_fpath and output_dirpath exclude each other"),
        (("+artifact_fpath=a", "+split=train", "+output_dirpath=b"), "artifact_fpath and split exclude each other"),
        (("+output_fpath=a",), "output_fpath is one file: give artifact_fpath or split"),
        (("+split=dev", "+output_fpath=a"), 'split: "dev" is not one of test, train, validation'),
        (("+artifact_fpath=no.jsonl", "+output_fpath=a"), "no.jsonl of some/data could not be downloaded: 404"),
    ],
)
def test_what_cannot_be_fetched_is_one_line(shell, hub, words, said):
    done = shell.run("ng_download_dataset_from_hf", "+repo_id=some/data", f"+hf_token={TOKEN}", *words)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert said in done.stderr
    assert TOKEN not in done.stderr
    assert not (shell.folder / "a").exists()


@pytest.mark.skipif(find_spec("datasets") is not None, reason="the extra is installed")
def test_a_split_that_is_no_file_needs_the_extra(shell, hub):
    done = shell.run("rollmill", "download", "some/data", "--split", "validation", "--out", "a")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "needs the extra: pip install 'rollmill[data]'" in done.stderr


CONFIG = "+resource_config_path=resources_servers/mcqa/configs/mcqa.yaml"
MINE = ("ng_upload_dataset_to_hf", "+input_jsonl_fpath=train.jsonl", "+hf_organization=some", f"+hf_token={TOKEN}")


def test_a_file_is_given_to_a_dataset_that_is_named_as_nemo_gym_names_it(shell, hub):
    (shell.folder / "train.jsonl").write_bytes(TRAIN)
    collection = ("+hf_collection_name=My Sets", "+hf_collection_slug=1a")
    done = shell.run(*MINE, CONFIG, "+dataset_name=quiz", *collection, "+commit_message=First")
    assert (done.returncode, done.stderr) == (0, "")
    repo = "some/Nemotron-RL-knowledge-quiz"
    assert done.stdout == f"Uploaded train.jsonl to {repo}: {hub.url}/datasets/{repo}/commit/abc\n"
    assert hub.given == {"train.jsonl": TRAIN}
    assert hub.commit["summary"] == "First"
    assert hub.collected == [{"id": repo, "type": "dataset"}]
    assert ("GET", "/api/collections/some/my-sets-1a") in hub.heard
    assert f"Bearer {TOKEN}" in hub.tokens


def test_who_may_not_write_proposes(shell, hub):
    hub.may_make = False
    (shell.folder / "train.jsonl").write_bytes(TRAIN)
    words = ("train.jsonl", "--owner", "some", "--config", "resources_servers/mcqa/configs/mcqa.yaml", "--prefix", "")
    done = shell.run("rollmill", "upload", *words)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "some/knowledge-mcqa could not be made: 403" in done.stderr
    done = shell.run("rollmill", "upload", *words, "--pr")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("/datasets/some/knowledge-mcqa/discussions/1\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "missing: resource_config_path"),
        ((CONFIG, "+hf_collection_name=x"), "hf_collection_name and hf_collection_slug belong together"),
        ((CONFIG, "+delete_from_gitlab=true"), "delete_from_gitlab: there is no way to GitLab here"),
        ((CONFIG,), "train.jsonl, line 1: the row has no responses_create_params"),
        (("+resource_config_path=a.yaml",), "resource_config_path: a.yaml is not there"),
        (("+resource_config_path=train.jsonl",), "train.jsonl has no resources_servers instance"),
    ],
)
def test_what_cannot_be_given_is_one_line(shell, hub, words, said):
    shell.write("train.jsonl", {"question": "x"})
    done = shell.run(*MINE, *words)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert said in done.stderr
    assert TOKEN not in done.stderr
    assert not hub.given


def test_a_dataset_that_is_not_here_is_fetched_while_preparing(shell, hub):
    source = "{type: huggingface, repo_id: some/data}"
    shell.write(
        "quiz.yaml",
        "quiz_agent:\n  responses_api_agents:\n    simple_agent:\n      datasets:\n"
        f"      - {{name: t, type: train, jsonl_fpath: data/t.jsonl, source: {source}}}",
    )
    words = ("ng_prepare_data", "+config_paths=[quiz.yaml]", "+mode=train_preparation", "+output_dirpath=out")
    done = shell.run(*words)
    assert done.returncode == 2
    assert "datasets are not here: t, data/t.jsonl; +should_download=true fetches" in done.stderr
    done = shell.run(*words, "+should_download=true")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "Fetching t from some/data to data/t.jsonl\n"
    assert (shell.folder / "data/t.jsonl").read_bytes() == TRAIN
    assert [row["agent_ref"]["name"] for row in shell.rows("out/train.jsonl")] == ["quiz_agent"]
