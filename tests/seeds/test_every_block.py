"""Every block of commands and of settings in the documents has its test."""

import sys
from pathlib import Path

import pytest
from tests.seeds import (
    test_continuous,
    test_integration,
    test_overview,
    test_profiling,
    test_scale,
    test_settings,
    test_throughput,
)
from tests.seeds.documents import SEEDS, block, blocks, needs_documents

pytestmark = needs_documents

LANGUAGES = ("bash", "yaml")

TESTS = {
    ("000", "bash", "Automatically displays"): test_throughput.test_progress_and_metrics_are_shown,
    ("000", "bash", "Check how many completed"): test_throughput.test_resuming_appends_and_plays_nothing_twice,
    (
        "000",
        "bash",
        "max_output_tokens",
    ): test_throughput.test_parameters_are_overridden_for_every_row,
    ("000", "bash", "Output shows"): test_throughput.test_the_bar_says_how_many_rollouts_end_in_a_second,
    ("000", "bash", "Quick benchmark"): test_throughput.test_a_benchmark_is_timed,
    ("001", "bash", "# Math tasks"): test_integration.test_two_environments_become_one_dataset,
    ("001", "bash", "# Transform each dataset"): test_integration.test_two_environments_become_one_dataset,
    ("001", "yaml", "train_data_path"): test_integration.test_two_environments_become_one_dataset,
    ("001", "yaml", "# Prioritize prompt diversity"): test_settings.test_a_collection_is_configured_by,
    ("001", "yaml", "# Prioritize quality over diversity"): test_settings.test_a_collection_is_configured_by,
    ("001", "yaml", "# Collect multiple rollouts per prompt"): test_settings.test_a_collection_is_configured_by,
    ("002", "bash", "ng_test"): test_overview.test_an_environment_is_tested_by_itself,
    ("002", "yaml", "# Optimized for consistency"): test_settings.test_a_collection_is_configured_by,
    ("002", "yaml", "# Optimized for diversity"): test_settings.test_a_collection_is_configured_by,
    ("002", "yaml", "# Balanced approach"): test_settings.test_a_collection_is_configured_by,
    ("003", "bash", "ng_run"): test_profiling.test_services_are_profiled_until_ctrl_c,
    ("003", "bash", "+agent_name=math_with_judge_simple_agent"): test_profiling.test_services_are_profiled_until_ctrl_c,
    ("004", "bash", "... process crashes"): test_scale.test_incremental_collection_with_resume,
    ("004", "bash", "completed=$(wc -l < rollouts.jsonl)"): test_scale.test_incremental_collection_with_resume,
    ("004", "bash", "tail -n +5248"): test_scale.test_incremental_collection_with_resume,
    ("004", "bash", "mkdir -p outputs/million_scale"): test_scale.test_million_scale_generation,
    ("004", "bash", "split -l 10000 -d"): test_scale.test_million_scale_generation,
    ("004", "bash", "MAX_PARALLEL=4"): test_scale.test_million_scale_generation,
    ("004", "bash", "watch -n 30"): test_scale.test_million_scale_generation,
    ("004", "bash", "Concatenate all rollouts"): test_scale.test_million_scale_generation,
    ("004", "bash", "# Start tmux session"): test_continuous.test_a_run_in_tmux_goes_on_when_its_terminal_is_gone,
    ("004", "bash", "# Reattach to session"): test_continuous.test_a_run_in_tmux_goes_on_when_its_terminal_is_gone,
    ("004", "bash", "tee collection.log"): test_continuous.test_the_log_is_searched,
    ("004", "bash", "human_curated.jsonl"): test_scale.test_three_outputs_are_collected_differently_and_mixed,
    ("004", "bash", "synthetic_tasks.jsonl"): test_scale.test_three_outputs_are_collected_differently_and_mixed,
    ("004", "bash", "difficult_cases.jsonl"): test_scale.test_three_outputs_are_collected_differently_and_mixed,
}
"""The test of the block that contains these words."""


def test_every_block_has_a_test():
    tested = {block(*where) for where in TESTS}
    for seed in ("000", "001", "002", "003", "004"):
        for language in LANGUAGES:
            for code in blocks(seed, language):
                assert code in tested, f"no test runs this block of seed {seed}:\n{code}"


def test_every_fence_is_read():
    for path in SEEDS.glob("00*.txt"):
        found = sum(len(blocks(path.name[:3], language)) for language in LANGUAGES)
        opened = [line.strip("` ") for line in path.read_text().splitlines() if line.lstrip().startswith("```")]
        assert found == sum(word in (*LANGUAGES, "sh", "shell", "console") for word in opened), path.name


@pytest.mark.parametrize("where", TESTS, ids=" ".join)
def test_a_test_reads_its_block(where):
    _, _, words = where
    path = Path(sys.modules[TESTS[where].__module__].__file__)
    assert f'"{words}"' in path.read_text(), f"{path} reads no block that contains {words!r}"
