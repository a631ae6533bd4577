"""The folder in which the documents' commands run."""

import pytest
from tests.seeds.place import Place


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)
