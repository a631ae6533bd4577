"""The regular expressions of rows, which nobody has checked: some would take longer than the universe has time."""

from __future__ import annotations

from collections import deque

# The standard library's `re` cannot be stopped; this one takes a deadline.
import regex

TAIL = 20_000
"""How many characters of the answer, counted from its end, a row's `output_regex` sees."""

_DEADLINE_S = 1.0


def last_match(pattern: str, text: str) -> str | None:
    """The last match in the tail of a text, its first group if it has one.

    None without a match, and where the pattern does not compile or does not finish.
    """
    try:
        # `concurrent` lets other threads run while it searches.
        matches = regex.finditer(pattern, text[-TAIL:], regex.IGNORECASE, timeout=_DEADLINE_S, concurrent=True)
        found = next(iter(deque(matches, maxlen=1)), None)
    except (regex.error, TimeoutError, RecursionError, MemoryError, OverflowError):
        return None
    if found is None:
        return None
    said: str = (found[1] if found.re.groups else None) or found[0]
    return said[:2000]
