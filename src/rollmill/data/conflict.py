"""Whether metrics that were written before still hold: a change of the data, or of the counting, is not passed over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rollmill.data.rollouts import UNREADABLE


def conflict_path(metrics: Path) -> Path:
    """Where the other version goes."""
    return metrics.with_name(f"{metrics.stem}_conflict.json")


def difference(metrics: Path, now: dict[str, Any]) -> str | None:
    """The first place where a file says something else, if it is there; what it does not say is no difference."""
    try:
        before = msgspec.json.decode(metrics.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except UNREADABLE as error:
        return f"it is not JSON: {error}"
    return next(_differences(before, now, ""), None)


def _differences(before: Any, now: Any, at: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key, value in before.items():
            # What is null is as good as absent.
            yield from _differences(value, now.get(key), f"{at}.{key}" if at else key)
    elif isinstance(before, list) and isinstance(now, list):
        if not _same_items(before, now):
            yield f"{at}: {_said(before)} was, {_said(now)} is"
    elif not _same(before, now):
        yield f"{at}: {_said(before)} was, {_said(now)} is"


def _same(before: Any, now: Any) -> bool:
    """Numbers are rounded when they are written, so that nearly the same is the same."""
    if isinstance(before, int | float) and isinstance(now, int | float):
        tolerance = 5e-3 if max(abs(before), abs(now)) >= 1 else 5e-4
        return abs(before - now) <= tolerance
    return bool(before == now)


def _same_items(before: Sequence[Any], now: Sequence[Any]) -> bool:
    """In any order."""
    left = list(now)
    for one in before:
        same = next((other for other in left if not any(_differences(one, other, ""))), None)
        if same is None and None not in left:
            return False
        left.remove(same)
    return not left


def _said(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}..."
