"""Rows of other systems, and files of rows."""

import json
from pathlib import Path


def foreign(task: int, rollout: int, reward: float, *, agent: str = "theirs", **fields) -> dict:
    """A rollout as NeMo Gym writes it."""
    return {
        "responses_create_params": {"input": [{"role": "user", "content": f"task {task}"}]},
        "answer": f"of {task}",
        "agent_ref": {"type": "responses_api_agents", "name": agent},
        "_ng_task_index": task,
        "_ng_rollout_index": rollout,
        "reward": reward,
        "response": {"output": [], "usage": {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}},
        **fields,
    }


def asked(task: int, rollout: int, *, agent: str = "theirs") -> dict:
    """The materialized input of such a rollout."""
    row = foreign(task, rollout, 0.0, agent=agent)
    return {name: value for name, value in row.items() if name not in ("reward", "response")}


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]
