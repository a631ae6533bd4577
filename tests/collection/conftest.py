import pytest
from tests.collection.parts import Clock


@pytest.fixture
def time() -> Clock:
    return Clock()
