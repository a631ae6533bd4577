"""`rollmill prepare` and `ng_prepare_data` as processes."""

import json

import pytest

from rollmill.plugins import environments

CONFIG = """\
quiz:
  resources_servers:
    quiz: {{entrypoint: app.py, domain: knowledge}}
quiz_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {{type: resources_servers, name: quiz}}
      model_server: {{type: responses_api_models, name: policy_model}}
      datasets:
{datasets}
other_agent:
  responses_api_agents:
    simple_agent:
      resources_server: {{type: resources_servers, name: quiz}}
      model_server: {{type: responses_api_models, name: policy_model}}
      datasets:
      - {{name: more, type: train, jsonl_fpath: data/more.jsonl}}
"""
DATASETS = """\
      - {name: train, type: train, jsonl_fpath: data/train.jsonl, num_repeats: 2, license: Apache 2.0}
      - {name: test, type: validation, jsonl_fpath: data/test.jsonl, license: Apache 2.0}"""


def asked(text: str, **fields) -> dict:
    return {"responses_create_params": {"input": text}, **fields}


@pytest.fixture
def prepare(shell):
    """A configuration with three datasets; run the command on it."""
    (shell.folder / "data").mkdir()
    shell.write("data/train.jsonl", asked("a", level=1), asked("b", level=2))
    shell.write("data/test.jsonl", asked("c", level=3))
    shell.write("data/more.jsonl", asked("d", agent_ref={"name": "nobody"}, score=1.5))
    shell.write("quiz.yaml", CONFIG.format(datasets=DATASETS))

    def run(*words: str, mode: str = "train_preparation"):
        return shell.run("ng_prepare_data", "+config_paths=[quiz.yaml]", f"+mode={mode}", "+output_dirpath=out", *words)

    return run


def load(path) -> dict:
    return json.loads(path.read_text())


def test_datasets_are_checked_counted_stamped_repeated_and_put_together(shell, prepare):
    done = prepare()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-2:] == [
        "Prepared: out/train.jsonl (5 rows); out/train_metrics.json",
        "Prepared: out/validation.jsonl (1 row); out/validation_metrics.json",
    ]
    rows = shell.rows("out/train.jsonl")
    assert [row["responses_create_params"]["input"] for row in rows] == ["a", "a", "b", "b", "d"]
    ref = {"type": "responses_api_agents", "name": "quiz_agent"}
    assert [row["agent_ref"] for row in rows] == [ref] * 4 + [ref | {"name": "other_agent"}]
    assert shell.rows("data/train_prepare.jsonl") == rows[:4]
    assert shell.rows("data/more_prepare.jsonl") == rows[4:]
    own = load(shell.folder / "data/train_metrics.json")
    assert (own["name"], own["type"], own["jsonl_fpath"], own["num_repeats"]) == (
        "train",
        "train",
        "data/train.jsonl",
        2,
    )
    assert (own["license"], own["Number of examples"], own["level"]["Average"]) == ("Apache 2.0", 4, 1.5)
    whole = load(shell.folder / "out/train_metrics.json")
    assert (whole["Number of examples"], whole["level"]["Total # non-null values"], whole["score"]["Max"]) == (
        5,
        4,
        1.5,
    )
    assert sorted(path.name for path in (shell.folder / "out").iterdir()) == [
        "train.jsonl",
        "train_metrics.json",
        "validation.jsonl",
        "validation_metrics.json",
    ]
    # The same again is no conflict.
    assert prepare().returncode == 0


def test_metrics_that_have_changed_stop_it_and_are_shown_beside_the_others(shell, prepare):
    assert prepare().returncode == 0
    shell.write("data/train.jsonl", asked("a", level=1), asked("b", level=4))
    done = prepare()
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "data/train_metrics.json (level.Average: 1.5 was, 2.5 is)" in done.stderr
    assert "out/train_metrics.json (level.Average" in done.stderr
    assert "+overwrite_metrics_conflicts=true" in done.stderr
    assert load(shell.folder / "data/train_metrics.json")["level"]["Average"] == 1.5
    assert load(shell.folder / "data/train_metrics_conflict.json")["level"]["Average"] == 2.5
    assert [row.get("level") for row in shell.rows("out/train.jsonl")] == [1, 1, 2, 2, None]
    done = prepare("+overwrite_metrics_conflicts=true")
    assert done.returncode == 0, done.stderr
    assert load(shell.folder / "data/train_metrics.json")["level"]["Average"] == 2.5
    assert not list(shell.folder.rglob("*conflict*"))
    assert [row.get("level") for row in shell.rows("out/train.jsonl")] == [1, 1, 4, 4, None]


def test_what_is_wrong_is_one_line_and_nothing_is_written(shell, prepare):
    def wrong(said: str, *words: str, **options):
        done = prepare(*words, **options)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert said in done.stderr

    wrong("mode=example_validation takes datasets of type example, and there are quiz_agent: train", mode=EXAMPLE)
    wrong('mode: "train" is not one of example_validation, train_preparation', mode="train")
    wrong("output_dirpath: data/train.jsonl is a dataset that is prepared", "++output_dirpath=data")
    shell.write("data/test.jsonl", asked("c"), {"responses_create_params": {}})
    wrong("data/test.jsonl, line 2: `responses_create_params`:")
    shell.write("data/test.jsonl")
    wrong("data/test.jsonl: there is no row in it")
    (shell.folder / "data/test.jsonl").unlink()
    wrong("datasets are not here: test, data/test.jsonl; +should_download=true")
    wrong("the dataset test has no source: put it at data/test.jsonl", "+should_download=true")
    assert not (shell.folder / "out").exists()
    assert not list((shell.folder / "data").glob("*_*"))


EXAMPLE = "example_validation"


def test_what_lies_in_gitlab_is_said(shell, prepare):
    (shell.folder / "data/test.jsonl").unlink()
    source = "source: {type: gitlab, dataset_name: d, version: 0.0.1, artifact_fpath: test.jsonl}}"
    shell.write("quiz.yaml", CONFIG.format(datasets=DATASETS.removesuffix("}") + f", {source}"))
    done = prepare("+should_download=true")
    assert done.returncode == 2
    assert "the dataset test is in GitLab, to which there is no way here" in done.stderr


def test_a_benchmark_gets_its_prompts(shell, prepare):
    shell.write("p.yaml", "user: '{question}?'")
    shell.write("data/test.jsonl", {"question": "Why"})
    benchmark = (
        "      - {name: b, type: benchmark, jsonl_fpath: data/test.jsonl, prompt_config: p.yaml, num_repeats: 2}"
    )
    shell.write("quiz.yaml", CONFIG.format(datasets=benchmark))
    done = prepare()
    assert done.returncode == 0, done.stderr
    rows = shell.rows("out/benchmark.jsonl")
    assert [row["responses_create_params"]["input"][0]["content"] for row in rows] == ["Why?", "Why?"]


def test_what_is_prepared_can_be_played(shell, prepare):
    assert prepare().returncode == 0
    (shell.folder / "quiz.py").write_text(
        "import rollmill as rm\nclass Quiz(rm.Environment[rm.Task]):\n"
        "    @rm.reward\n    def right(self):\n        return True\n"
    )
    text = (shell.folder / "quiz.yaml").read_text().replace("    quiz: {", "    quiz.py:Quiz: {")
    shell.write("played.yaml", text)
    words = ("--model", "scripted", "--input", "out/train.jsonl", "--out", "a.jsonl")
    done = shell.run("rollmill", "collect", "+config_paths=[played.yaml]", *words)
    assert done.returncode == 0, done.stderr
    rows = shell.rows("a.jsonl")
    assert len(rows) == 5
    assert {row["agent_ref"]["name"] for row in rows} == {"quiz_agent", "other_agent"}


def test_the_examples_of_this_package_are_valid_without_a_model(shell):
    names = environments()
    done = shell.run("rollmill", "prepare", *names, "--mode", EXAMPLE, "--out", "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert "in the output folder: that of the dataset is not yours to write to" in done.stdout
    assert len(shell.rows("out/example.jsonl")) == 5 * len(names)
    for name in names:
        assert load(shell.folder / f"out/{name}_simple_agent_example_metrics.json")["Number of examples"] == 5
    model = "responses_api_models/openai_model/configs/openai_model.yaml"
    words = (f"+config_paths=[resources_servers/mcqa/configs/mcqa.yaml,{model}]", f"+mode={EXAMPLE}")
    done = shell.run("nemo_gym_prepare_data", *words, "+output_dirpath=again")
    assert (done.returncode, done.stderr) == (0, "")


def test_rows_that_an_environment_cannot_play_are_refused(shell):
    row = {"responses_create_params": {"input": "x"}, "options": [{"A": "y"}], "expected_answer": "Z"}
    (shell.folder / "resources_servers/mcqa/data").mkdir(parents=True)
    shell.write("resources_servers/mcqa/data/example.jsonl", row)
    done = shell.run("rollmill", "prepare", "mcqa", "--mode", EXAMPLE, "--out", "out")
    assert done.returncode == 2
    assert "resources_servers/mcqa/data/example.jsonl, line 1: " in done.stderr
