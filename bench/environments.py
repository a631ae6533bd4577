"""What the benchmark plays, written as a user would write it."""

from __future__ import annotations

import time

import rollmill as rm

COSTLY_S = 0.002


class Boxed(rm.Environment):
    """One answer, rewarded if it boxes the right letter."""

    verification = "stateless"

    @rm.reward
    def right(self) -> bool:
        return f"\\boxed{{{self.task['expected_answer']}}}" in self.trajectory.answer


class Synonyms(Boxed):
    """The same, with two tools to ask before."""

    @rm.tool
    def get_synonym_value(self, synonym: str) -> dict[str, int]:
        """The value of one synonym."""
        return {"synonym_value": sum(map(ord, synonym))}

    @rm.tool
    def list_synonyms(self, synonym: str) -> list[str]:
        """All synonyms of one word."""
        return [synonym.lower(), synonym.upper()]


class Costly(Boxed):
    """The same as `Boxed`, with a reward that takes 2 ms of CPU."""

    @rm.reward(weight=0)
    def pondered(self) -> float:
        began = time.thread_time()
        while (spent := time.thread_time() - began) < COSTLY_S:
            pass
        return spent
