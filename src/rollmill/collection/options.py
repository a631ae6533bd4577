"""What a collection can be asked for: the keys of `ng_collect_rollouts` and of `rollmill collect`."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from rollmill.rollout import Deadlines

Count = Annotated[int, Meta(ge=1)]


class CollectOptions(Struct, frozen=True, kw_only=True):
    """A name, its default, and a sentence each: this is also the help."""

    agent_name: str | None = None
    """The agent for rows that name none in `agent_ref`."""
    input_jsonl_fpath: str | None = None
    """The tasks, one JSON row a line. Without it the agent's own `datasets` serve."""
    output_jsonl_fpath: Annotated[str, Meta(min_length=1)]
    """Where the rollouts go, one JSON row a line. What is there already is kept, and not played again."""
    limit: Annotated[int, Meta(ge=0)] | None = None
    """Take only the first so many tasks; 0 or null takes all."""
    num_repeats: Count | dict[str, Count] | None = 1
    """How often each task is played: a number, or a number by agent with `_default` for the others."""
    num_samples_in_parallel: Count | None = None
    """How many rollouts run at once; by default what the model can serve, or 64."""
    responses_create_params: dict[str, Any] = {}
    """Overrides for every row's `responses_create_params`: temperature, max_output_tokens, …"""
    seed: int = 0
    """The seed of tasks that an environment makes itself."""
    max_attempts: Count = 3
    """How often a slot is tried before it counts as failed."""
    deadlines: Deadlines = Deadlines()
    """How long each stage of a rollout may take: `deadlines.play_s` and so on."""

    def repeats(self, agent: str) -> int:
        if isinstance(self.num_repeats, dict):
            return self.num_repeats.get(agent, self.num_repeats.get("_default", 1))
        return self.num_repeats or 1
