"""The YAML blocks of seeds 001 and 002 that say how to collect: they configure a collection wherever they stand."""

import threading
from collections import Counter

import pytest
import yaml
from tests.seeds.documents import block, needs_documents
from tests.seeds.place import row, served_at

pytestmark = [pytest.mark.slow, needs_documents]

SETTINGS = [
    ("001", "# Prioritize prompt diversity"),
    ("001", "# Prioritize quality over diversity"),
    ("001", "# Collect multiple rollouts per prompt"),
    ("002", "# Optimized for consistency"),
    ("002", "# Optimized for diversity"),
    ("002", "# Balanced approach"),
]


class Gathering:
    """Answers nobody before so many ask at once; and counts how many did."""

    def __init__(self, wanted: int) -> None:
        self._wanted, self._lock, self._enough = wanted, threading.Lock(), threading.Event()
        self._here = self.most = 0

    def __call__(self, body: dict) -> str:
        with self._lock:
            self._here += 1
            self.most = max(self.most, self._here)
            if self._here == self._wanted:
                self._enough.set()
        self._enough.wait(30)
        with self._lock:
            self._here -= 1
        return "yes"


@pytest.mark.parametrize("where", ["env.yaml", "settings.yaml"])
@pytest.mark.parametrize(("seed", "words"), SETTINGS)
def test_a_collection_is_configured_by(place, serve_model, seed, words, where):
    settings = block(seed, "yaml", words)
    said = yaml.safe_load(settings)
    parallel, repeats = said.get("num_samples_in_parallel", 1), said.get("num_repeats", 1)
    tasks = parallel + 5
    asked = Gathering(parallel)
    server = serve_model(asked)
    place.configure(policy=served_at(server.url))
    with (place.folder / where).open("a") as file:
        file.write(settings)
    place.write("tasks.jsonl", *(row(number) | {"delay": 0} for number in range(tasks)))
    command = "ng_collect_rollouts +agent_name=my_agent +input_jsonl_fpath=tasks.jsonl +output_jsonl_fpath=a.jsonl"
    place.ran(command if where == "env.yaml" else f"{command} '+config_paths=[{where}]'")
    assert {body["temperature"] for body in server.heard} == {said["responses_create_params"]["temperature"]}
    assert Counter(place.numbers("a.jsonl")) == dict.fromkeys(range(tasks), repeats)
    if "num_samples_in_parallel" in said:
        assert asked.most == parallel
