"""The world of the crash tests: an errand has one right answer and one reward, so that no mix-up stays unseen.

The model is asked for an errand, looks it up with the tool, and says what it saw. The reward of a right answer is the
errand's `worth`, a number that no other errand has; any other answer earns 0.
"""

from __future__ import annotations

import rollmill as rm


class Errand(rm.Task):
    number: int
    secret: str
    worth: float


class Errands(rm.Environment[Errand]):
    verification = "replay"

    @rm.tool
    def look(self, number: int) -> str:
        """Look an errand up."""
        if number != self.task.number:
            raise rm.ToolError(f"this is errand {self.task.number}")
        return f"{number}: {self.task.secret}"

    @rm.reward
    def worth(self) -> float:
        right = self.trajectory.answer == f"{self.task.number}: {self.task.secret}"
        return self.task.worth if right else 0.0
