"""The head server: which services there are, and with which configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import yaml
from msgspec import Struct

from rollmill.config.tree import Tree
from rollmill.serve.app import App, Route
from rollmill.serve.guard import Guard
from rollmill.serve.http import Answer, Request, json
from rollmill.serve.openapi import Operation


class Shown(Struct, frozen=True):
    """A service as the head server shows it, with NeMo Gym's fields."""

    name: str
    server_type: str
    url: str
    host: str
    port: int
    pid: int | None
    state: str
    process_name: str
    config_path: str
    dir_path: str
    entrypoint: str
    num_workers: int = 1


class HeadServer:
    """Answers from what the command knows."""

    def __init__(self, tree: Tree, shown: Callable[[], list[Shown]], guard: Guard) -> None:
        """`tree` holds no secrets."""
        self._yaml = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
        self._shown = shown
        self.app = App("head", self._routes(), guard=guard)

    def _routes(self) -> list[Route]:
        whole = Operation("The configuration as YAML, in a JSON string", answer={"type": "string"})
        every = Operation("The services", answer={"type": "array", "items": {"type": "object"}})
        return [
            Route("GET", "/global_config_dict_yaml", self._configuration, whole),
            Route("GET", "/server_instances", self._instances, every),
        ]

    async def _configuration(self, _: Request) -> Answer:
        return json(self._yaml)

    async def _instances(self, _: Request) -> Answer:
        return json(self._shown())


def tree_of(tree: Tree, places: Mapping[str, tuple[str, str, str, int]]) -> dict[str, Any]:
    """A configuration in which every instance says where it listens: (kind, implementation, host, port) by name."""
    told = dict(tree)
    for name, (kind, implementation, host, port) in places.items():
        fields = tree.get(name, {}).get(kind, {}).get(implementation, {})
        told[name] = {kind: {implementation: {**fields, "host": host, "port": port}}}
    return told
