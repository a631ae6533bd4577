"""What speaks to sockets itself is tested on both event loops."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import uvloop
from tests.models.conftest import no_proxy, serve

__all__ = ["no_proxy", "serve"]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Callable[[], Any]]:
    loops = {"standard": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return loops if item.path.name == "test_transport.py" else {"standard": loops["standard"]}
