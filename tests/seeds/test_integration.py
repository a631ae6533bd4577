"""The commands of seed 001, on training frameworks; test_scripts.py has its script, test_settings.py its settings."""

import json

import pytest
import yaml
from tests.seeds.documents import block, needs_documents
from tests.seeds.place import agent, row

pytestmark = [pytest.mark.slow, needs_documents]

TRANSFORM = '''
"""A line for each rollout of a file: what was said, and the reward."""

import json
import sys

with open(sys.argv[1]) as rollouts:
    for line in rollouts:
        rollout = json.loads(line)
        asked, answered = rollout["responses_create_params"]["input"], rollout["response"]["output_text"]
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
        print(json.dumps({"messages": messages, "reward": rollout["reward"]}))
'''


def test_two_environments_become_one_dataset(place):
    # The commands name no input: each agent's own dataset is played.
    for kind, numbers in (("math", range(6)), ("code", range(6, 10))):
        place.write(f"{kind}.jsonl", *map(row, numbers))
    datasets = {
        f"{kind}_agent": agent("world", datasets=[{"name": kind, "type": "train", "jsonl_fpath": f"{kind}.jsonl"}])
        for kind in ("math", "code")
    }
    place.configure(**datasets)
    place.ran(block("001", "bash", "# Math tasks"))
    assert place.numbers("rollouts_math.jsonl") == list(range(6))
    assert place.numbers("rollouts_code.jsonl") == list(range(6, 10))
    assert {row["agent_ref"]["name"] for row in place.rows("rollouts_code.jsonl")} == {"code_agent"}

    (place.folder / "transform.py").write_text(TRANSFORM)
    place.ran(block("001", "bash", "# Transform each dataset"))
    combined = place.rows("combined_train.jsonl")
    rewards = [row["reward"] for name in ("math", "code") for row in place.rows(f"rollouts_{name}.jsonl")]
    assert [row["reward"] for row in combined] == rewards
    assert [message["role"] for row in combined for message in row["messages"]] == ["user", "assistant"] * 10

    training = yaml.safe_load(block("001", "yaml", "train_data_path"))
    with (place.folder / training["data"]["train_data_path"]).open() as file:
        assert [json.loads(line)["reward"] for line in file] == rewards
