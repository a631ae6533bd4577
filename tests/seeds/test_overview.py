"""The command of seed 002, the overview; its settings are in test_settings.py."""

import pytest
from tests.seeds.documents import block, needs_documents

pytestmark = [pytest.mark.slow, needs_documents]


def test_an_environment_is_tested_by_itself(place):
    done = place.ran(block("002", "bash", "ng_test"))
    assert "contract: kept on 5 tasks" in done.stdout
    assert "resources_servers/simple_weather: passed" in done.stdout
