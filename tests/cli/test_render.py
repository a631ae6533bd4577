"""`rollmill render`, `ng_materialize_prompts`, and collections that make prompts themselves."""

import pytest

PROMPT = "system: Answer with a number.\nuser: What is {a} + {b}?"


@pytest.fixture
def rows(shell):
    shell.write("p.yaml", PROMPT)
    shell.write("rows.jsonl", *({"a": n, "b": 1, "answer": n + 1} for n in range(3)))


@pytest.mark.usefixtures("rows")
def test_rows_get_their_prompts(shell):
    words = ("+input_jsonl_fpath=rows.jsonl", "+prompt_config=p.yaml", "+output_jsonl_fpath=out/a.jsonl")
    for spelling in (("ng_materialize_prompts", *words), (*RENDER, "rows.jsonl", "--prompt", "p.yaml", *OUT)):
        done = shell.run(*spelling)
        assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Materialized 3 rows to out/b.jsonl\n"
    assert shell.rows("out/a.jsonl") == shell.rows("out/b.jsonl")
    row = shell.rows("out/a.jsonl")[2]
    asked = [{"role": "system", "content": "Answer with a number."}, {"role": "user", "content": "What is 2 + 1?"}]
    rest = {"a": 2, "b": 1, "answer": 3, "prompt_config_used": "p.yaml"}
    assert row == {**rest, "responses_create_params": {"input": asked}}


@pytest.mark.usefixtures("rows")
def test_a_compressed_output_is_compressed(shell):
    done = shell.run(*RENDER, "rows.jsonl", "--prompt", "p.yaml", "--out", "a.jsonl.zst")
    assert done.returncode == 0, done.stderr
    done = shell.run("rollmill", "collect", "arithmetic", "--model", "scripted:1", "--input", "a.jsonl.zst", *OUT)
    assert done.returncode == 0, done.stderr
    assert len(shell.rows("out/b.jsonl")) == 3
    done = shell.run(*RENDER, "rows.jsonl", "--prompt", "p.yaml", "--out", "a.jsonl.gz")
    assert done.stderr == "rollmill: output_jsonl_fpath: a.jsonl.gz: the name ends in .jsonl or .jsonl.zst\n"


RENDER, OUT = ("rollmill", "render"), ("--out", "out/b.jsonl")


@pytest.mark.usefixtures("rows")
def test_a_collection_makes_prompts_before_tasks_are_identified(shell):
    words = ("rollmill", "collect", "arithmetic", "--model", "scripted:3", "--input", "rows.jsonl", "--out", "a.jsonl")
    done = shell.run(*words, "--prompt", "p.yaml")
    assert done.returncode == 0, done.stderr
    rows = sorted(shell.rows("a.jsonl"), key=lambda row: row["a"])
    assert [row["reward"] for row in rows] == [0.0, 0.0, 1.0]
    assert rows[0]["responses_create_params"]["input"][1]["content"] == "What is 0 + 1?"
    again = shell.run(*words, "+prompt_config=p.yaml")
    assert "Nothing to do" in again.stdout
    # Another prompt makes other tasks, though the rows are the same.
    shell.write("p.yaml", "user: '{a} and {b}?'")
    more = shell.run(*words, "--prompt", "p.yaml")
    assert more.returncode == 0, more.stderr
    assert len(shell.rows("a.jsonl")) == 6
    assert len({row["rollmill"]["slot"]["task"] for row in shell.rows("a.jsonl")}) == 6


@pytest.mark.usefixtures("rows")
def test_what_is_wrong_is_one_line(shell):
    shell.write("asked.jsonl", {"responses_create_params": {"input": "x"}})
    shell.write("bad.yaml", "user: '{c}'")
    collect = ("rollmill", "collect", "arithmetic", "--model", "scripted", "--out", "a.jsonl")
    for words, said in (
        (
            (*RENDER, "rows.jsonl", "--prompt", "bad.yaml", *OUT),
            "rows.jsonl, line 1: bad.yaml, user asks for",
        ),
        (
            (*RENDER, "asked.jsonl", "--prompt", "p.yaml", *OUT),
            "asked.jsonl, line 1: it has responses_create",
        ),
        ((*RENDER, "rows.jsonl", "--prompt", "q.yaml", *OUT), "prompt_config: q.yaml is not there"),
        (("ng_materialize_prompts", "+input_jsonl_fpath=rows.jsonl"), "missing: prompt_config, output_jsonl_fpath"),
        ((*collect, "--input", "rows.jsonl", "--prompt", "bad.yaml"), "rows.jsonl, line 1: "),
        ((*collect, "--prompt", "p.yaml"), "makes its own tasks; give rows with +input_jsonl_fpath"),
    ):
        done = shell.run(*words)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert said in done.stderr
    assert not (shell.folder / "out/b.jsonl").exists()
