"""How many rollouts at once the files are enough for, in processes whose limit can be set."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from rollmill.cli.descriptors import lowered, most_at_once
from rollmill.collection.options import CollectOptions
from rollmill.config import Instance
from rollmill.errors import ConfigError

soft, hard, models, asked, workers = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
instances = {
    f"model_{n}": Instance(name=f"model_{n}", kind="responses_api_models", implementation="x", fields={})
    for n in range(models)
}
try:
    most = most_at_once(instances)
except ConfigError as error:
    sys.exit(f"refused: {error}")
options = CollectOptions(output_jsonl_fpath="a", num_samples_in_parallel=asked or None, workers=workers)
options = lowered(options, instances, most, lambda text: print(text, file=sys.stderr))
print(most, options.num_samples_in_parallel, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.fixture
def within(tmp_path):
    """What is made of a limit of files, so many models, and rollouts asked for with so many workers."""
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(soft: int, hard: int, *, models: int = 1, asked: int = 0, workers: int = 1):
        words = [str(number) for number in (soft, hard, models, asked, workers)]
        command = [sys.executable, str(tmp_path / "program.py"), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


def test_a_process_allows_itself_what_it_may(within):
    assert within(100, 1000).stdout == "936 None 1000\n"


def test_who_asks_for_more_gets_what_is_possible_and_is_told(within):
    done = within(256, 256, asked=1000)
    assert done.stdout == "192 192 256\n"
    assert (
        done.stderr == "Too few files may be open for 1,000 rollouts at once: 192 it is; `ulimit -n 1064` is enough\n"
    )


def test_every_worker_has_files_of_its_own_and_every_model_wants_some(within):
    assert within(256, 256, asked=384, workers=2).stdout == "192 384 256\n"
    assert within(256, 256, asked=400, workers=2).stdout == "192 384 256\n"
    assert within(256, 256, asked=100, models=2).stdout == "96 96 256\n"


def test_too_few_for_one_are_refused_with_what_helps(within):
    done = within(64, 64)
    assert done.returncode == 1
    assert "refused: this process may open 64 files, which is too few: raise that with `ulimit -n 1024`" in done.stderr
