"""`<stem>_failures.jsonl` and `<stem>_materialized_inputs.jsonl`, in NeMo Gym's shapes, for tools that read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

from msgspec import Raw

from rollmill.collection.worker import Job
from rollmill.store.aggregate import Agent, Aggregate, Ended
from rollmill.store.inputs import Inputs
from rollmill.store.schema import one_line
from rollmill.types import Failure, encode


def write_failures(file: BinaryIO, aggregate: Aggregate, inputs: Inputs) -> None:
    """The slots that failed for good: the input row, and why there is no rollout of it."""
    for agent in aggregate.agents():
        for one in aggregate.failed(agent):
            failed = inputs.of_failure(one.place)
            said = {
                "_ng_attempt_index": failed.attempt - 1,
                "_ng_failure_class": failure_class(failed.failure),
                "_ng_failure_terminal": True,
                "rollmill": {"failure": failed.failure, "attempt": failed.attempt},
            }
            _write(file, (failed.row or {}) | _place(agent, one) | said)


def write_materialized_inputs(file: BinaryIO, aggregate: Aggregate, inputs: Inputs, owed: Iterable[Job]) -> None:
    """Every slot's row as it was played, in the order of the tasks; those that are owed at the end.

    A slot that failed is left out where the log of failures was written without its row.
    """
    for agent in aggregate.agents():
        for one in aggregate.ended(agent):
            row = inputs.of_failure(one.place).row if one.failed else inputs.of_rollout(one.place)
            if row is not None:
                _write(file, row | _place(agent, one))
    for job in owed:
        slot = job.slot
        _write(file, job.task.fields | place(slot.agent, slot.task_index, slot.rollout_index))


def failure_class(failure: Failure) -> str:
    """NeMo Gym's word for it."""
    if failure.where == "verifier":
        return "judge_failed"
    if failure.kind == "timeout":
        return "timeout_exceeded"
    return "transient" if failure.retryable or failure.where == "infrastructure" else "legitimate"


def _place(agent: Agent, one: Ended) -> dict[str, Any]:
    return place(agent.name, one.task_index, one.rollout_index)


def place(agent: str, task_index: int, rollout_index: int) -> dict[str, Any]:
    """What tells a slot from the others."""
    return {
        "agent_ref": {"type": "responses_api_agents", "name": agent},
        "_ng_task_index": task_index,
        "_ng_rollout_index": rollout_index,
    }


def _write(file: BinaryIO, row: Mapping[str, Raw | Any]) -> None:
    file.write(one_line(encode(row)) + b"\n")
