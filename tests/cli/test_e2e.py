"""`ng_e2e_collect_rollouts`: from the datasets of a configuration to rollouts in one command."""

import json

CONFIGURATION = """\
config_paths:
- resources_servers/mcqa/configs/mcqa.yaml
- responses_api_models/scripted_model/configs/scripted_model.yaml
policy_model:
  responses_api_models:
    scripted_model: {lines: ['\\boxed{B}']}
mcqa_simple_agent:
  responses_api_agents:
    simple_agent:
      datasets:
      - {name: questions, type: train, jsonl_fpath: questions.jsonl, num_repeats: 2, license: Apache 2.0}
"""


def question(number: int) -> dict:
    return {
        "responses_create_params": {"input": f"Question {number}"},
        "options": [{"A": "no"}, {"B": "yes"}],
        "expected_answer": "AB"[number % 2],
    }


def prepared(shell) -> None:
    (shell.folder / "all.yaml").write_text(CONFIGURATION)
    shell.write("questions.jsonl", *map(question, range(4)))


def test_datasets_are_prepared_and_their_split_is_played(shell):
    prepared(shell)
    words = ("+config_paths=[all.yaml]", "+output_jsonl_fpath=out/a.jsonl")
    done = shell.run("ng_e2e_collect_rollouts", *words, "+split=train")
    assert done.returncode == 0, done.stderr
    folder = shell.folder / "out/a/preprocessed_datasets"
    assert {path.name for path in folder.iterdir()} == {"train.jsonl", "train_metrics.json"}
    assert len((folder / "train.jsonl").read_text().splitlines()) == 8
    rows = shell.rows("out/a.jsonl")
    assert sorted(row["reward"] for row in rows) == [0.0] * 4 + [1.0] * 4
    assert json.loads((folder / "train_metrics.json").read_text())["Number of examples"] == 8

    again = shell.run("ng_e2e_collect_rollouts", *words, "+split=train", "+reuse_existing_data_preparation=true")
    assert again.returncode == 0, again.stderr
    assert "Nothing to do" in again.stdout
    assert "Prepared" not in again.stderr


def test_the_modern_spelling(shell):
    done = shell.run("rollmill", "e2e", "mcqa", "--split", "example", "--out", "b.jsonl", "+policy_model=null")
    assert done.returncode == 2
    prepared(shell)
    model = "+config_paths=[responses_api_models/scripted_model/configs/scripted_model.yaml]"
    done = shell.run("rollmill", "e2e", "mcqa", "--split", "example", "--out", "b.jsonl", model)
    assert done.returncode == 0, done.stderr
    assert len(shell.rows("b.jsonl")) == 5


def test_what_cannot_be_prepared_is_one_line(shell):
    prepared(shell)
    words = ("ng_e2e_collect_rollouts", "+config_paths=[all.yaml]", "+output_jsonl_fpath=a.jsonl")
    for more, said in (
        ((), "missing: split"),
        (("+split=trian",), 'did you mean "train"'),
        (("+split=validation",), "the configuration has no dataset of type validation"),
        (("+split=train", "+input_jsonl_fpath=x.jsonl"), "the input is what is prepared"),
    ):
        done = shell.run(*words, *more)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    assert not (shell.folder / "a.jsonl").exists()
