"""The commands of seed 003, on profiling, with `mcqa` and a scripted model in the place of what they name."""

import re

import pytest
from tests.seeds.documents import block, needs_documents
from tests.seeds.terminal import CTRL_C, Terminal

pytestmark = [pytest.mark.slow, needs_documents]

NAMES = {
    "openai_model": "scripted_model",
    "math_with_judge/configs/bytedtsinghua_dapo17k.yaml": "mcqa/configs/mcqa.yaml",
    "math_with_judge": "mcqa",
    "1024": "60",
}
ROLLOUTS = 60
QUESTION = {"options": [{"A": "one"}, {"B": "two"}], "expected_answer": "B"}


def here(words: str) -> str:
    script = block("003", "bash", words)
    for theirs, ours in NAMES.items():
        script = script.replace(theirs, ours)
    return script


def functions(page: str) -> dict[str, list[float]]:
    """The rows of the table of functions: ncall, tsub, ttot and tavg."""
    head, table = re.split(r"^name +ncall +tsub +ttot +tavg *$", page, flags=re.MULTILINE)
    assert "Wall time by stage" in head
    rows = (line.split() for line in table.splitlines() if line.strip())
    return {" ".join(words[:-4]): [float(word) for word in words[-4:]] for words in rows}


def test_services_are_profiled_until_ctrl_c(place):
    place.configure(policy_model=None, world=None, my_agent=None)
    folder = place.folder / "resources_servers/mcqa/data"
    folder.mkdir(parents=True)
    rows = [{"responses_create_params": {"input": f"Which, {n}?"}, "number": n, **QUESTION} for n in range(70)]
    place.write("resources_servers/mcqa/data/dapo17k_bytedtsinghua_train.jsonl", *rows)
    with Terminal(place) as terminal:
        terminal.run(here("ng_run"))
        terminal.until("All 3 / 3 servers ready!")
        # The load comes from another terminal.
        done = place.ran(here("+agent_name=math_with_judge_simple_agent"))
        assert "Playing on the 3 services of" in done.stderr
        assert place.numbers("temp/mcqa_rollouts.jsonl") == list(range(ROLLOUTS))
        terminal.press(CTRL_C)
        terminal.until("Stopped 3 services.")
        terminal.run('echo "exit code $?"')
        terminal.until("exit code 0")

    results = place.folder / "results/profiling/mcqa"
    pages = {str(path.relative_to(results)): path.read_text() for path in results.rglob("*.log")}
    assert pages.keys() == {
        "MCQA___mcqa/mcqa.log",
        "ToolAgent___mcqa_simple_agent/mcqa_simple_agent.log",
        "Scripted___policy_model/policy_model.log",
    }
    found = functions(pages["MCQA___mcqa/mcqa.log"])
    for name in ("MCQA.verify", "MCQA._letter"):
        calls, own, whole, mean = found[name]
        assert calls == ROLLOUTS
        assert 0 < own <= whole
        assert mean == pytest.approx(whole / calls, abs=1e-6)
    # What took most stands first.
    assert [row[2] for row in found.values()] == sorted((row[2] for row in found.values()), reverse=True)
