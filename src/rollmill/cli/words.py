"""Which words of a command line are overrides of the configuration."""

from __future__ import annotations

import re

_OVERRIDE = re.compile(r"[+~]|[A-Za-z_][\w.-]*=")


def is_override(word: str) -> bool:
    return bool(_OVERRIDE.match(word))
