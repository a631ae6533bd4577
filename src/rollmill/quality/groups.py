"""What the rollouts of one task come to, in NeMo Gym's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rollmill.quality.spread import by_name, named


class Seen(NamedTuple):
    """A rollout of the group that is counted, by its numbers."""

    rollout_index: int
    numbers: Mapping[str, float]


def group_metrics(task_index: int, seen: Sequence[Seen], *, expected: int, unverified: int = 0) -> dict[str, Any]:
    """`expected` rollouts were asked for; those that are not verified are neither counted nor missing."""
    row = named(by_name(one.numbers for one in seen)) | {
        "num_rollouts": len(seen),
        "expected_num_rollouts": expected,
        "missing_num_rollouts": expected - len(seen) - unverified,
        "reward_profile_completion_pct": 100 * len(seen) / expected,
        "rollout_infos": [_info(task_index, one) for one in seen],
        "_ng_task_index": task_index,
    }
    return row | {"unverified_num_rollouts": unverified} if unverified else row


def _info(task_index: int, one: Seen) -> dict[str, Any]:
    return {
        "rollout_id": f"{task_index}:{one.rollout_index}",
        "_ng_task_index": task_index,
        "_ng_rollout_index": one.rollout_index,
        **one.numbers,
    }
