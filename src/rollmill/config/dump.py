"""A resolved configuration as YAML that means the same when it is loaded again."""

from __future__ import annotations

import re
from typing import Any

from omegaconf import OmegaConf

from rollmill.config.tree import Tree

_OPENING = re.compile(r"(\\*)\$\{")


def as_yaml(tree: Tree) -> str:
    """OmegaConf writes it, because it knows which text would be read back as a number."""
    return OmegaConf.to_yaml(OmegaConf.create(_literal(tree)))


def _literal(node: Any) -> Any:
    """A copy in which no text is an interpolation."""
    if isinstance(node, dict):
        return {key: _literal(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_literal(item) for item in node]
    return _OPENING.sub(r"\1\1\\${", node) if isinstance(node, str) else node
