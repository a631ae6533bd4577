"""What is said to a person beside the result, which alone goes to standard output."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(text: str) -> None:
    # Whoever read it may have gone, and so may its terminal.
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)
