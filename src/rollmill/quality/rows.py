"""Rollout rows, ours and those of other systems, as far as they are counted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from rollmill.quality.tally import Counted
from rollmill.types import OURS, encode

LARGEST = 2**63 - 1
_USAGE = ("input_tokens", "output_tokens")
_PLAYED = ("turns", "tool_calls")
_SKIPPED = "verification_skipped"


def counted(row: Mapping[str, Any]) -> Counted:
    """What counts of a row.

    A row of ours says itself what was measured. Of any other every number and truth value at the top counts, and so do
    those of its usage; but no index.
    """
    if row.get(_SKIPPED):
        return Counted(verified=False)
    block = row.get("rollmill")
    return _ours(row, block) if isinstance(block, Mapping) else _foreign(row)


def given(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the row's input had, as far as the row says which those are."""
    block = row.get("rollmill")
    if isinstance(block, Mapping):
        added = block.get("added", ())
        return {name: value for name, value in row.items() if name not in OURS and name not in added}
    return {name: value for name, value in row.items() if name not in OURS and not name.startswith(("_ng_", "ng_"))}


def asked(row: Mapping[str, Any]) -> bytes | None:
    """A hash of what the model was asked, whatever else differs from one repeat to another."""
    params = row.get("responses_create_params")
    if not isinstance(params, Mapping) or "input" not in params:
        return None
    return blake2b(encode(params["input"]), digest_size=16).digest()


class Places:
    """Which task a row is of, and which of its rollouts: as it says, else by what was asked, in order."""

    def __init__(self) -> None:
        self._tasks: dict[bytes | int, int] = {}
        self._rollouts: Counter[int] = Counter()

    def of(self, row: Mapping[str, Any]) -> tuple[int, int]:
        index, rollout = _index(row, "_ng_task_index"), _index(row, "_ng_rollout_index")
        if index is None:
            index = self._tasks.setdefault(asked(row) or len(self._tasks), len(self._tasks))
        if rollout is None:
            rollout = self._rollouts[index]
            self._rollouts[index] += 1
        return index, rollout


def _index(row: Mapping[str, Any], name: str) -> int | None:
    value = row.get(name)
    return value if isinstance(value, int) and 0 <= value <= LARGEST else None


def _ours(row: Mapping[str, Any], block: Mapping[str, Any]) -> Counted:
    spent = _usage(row)
    tokens = {name: number(spent.get(name)) or 0.0 for name in _USAGE}
    counts = tokens | {"total_tokens": sum(tokens.values())} | _numbers({name: block.get(name) for name in _PLAYED})
    reward = {"reward": row.get("reward")}
    return Counted(_numbers(row.get("reward_components")) | _numbers(block.get("metrics")) | _numbers(reward), counts)


def _foreign(row: Mapping[str, Any]) -> Counted:
    top = {name: value for name, value in row.items() if name != _SKIPPED and not name.startswith("_ng_")}
    return Counted(_numbers(top) | _numbers(_usage(row)))


def _usage(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where the row's tokens are counted."""
    response = row.get("response")
    places = (response.get("usage") if isinstance(response, Mapping) else None, row.get("usage"))
    return next((place for place in places if isinstance(place, Mapping)), {})


def _numbers(values: Any) -> dict[str, float]:
    if not isinstance(values, Mapping):
        return {}
    return {name: found for name, value in values.items() if (found := number(value)) is not None}


def number(value: Any) -> float | None:
    """A finite number or a truth value, else nothing."""
    if not isinstance(value, bool | int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None
