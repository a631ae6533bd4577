"""starter: one tool and one reward, to be made into what you want to train."""

from __future__ import annotations

import rollmill as rm


class StarterTask(rm.Task):
    """What a row of data/example.jsonl says beside its conversation."""

    boxes: dict[str, str]
    wanted: str


class Starter(rm.Environment[StarterTask]):
    """Closed boxes, and a question about one of them. An object lives for one rollout; its attributes are the world."""

    domain = "agent"
    verification = "replay"

    async def setup(self) -> None:
        self.opened: set[str] = set()

    @rm.tool
    def open_box(self, color: str) -> str:
        """Open a box and look into it."""
        if color not in self.task.boxes:
            return f"There is no {color} box. The boxes are {', '.join(self.task.boxes)}."
        self.opened.add(color)
        return f"In the {color} box there is a {self.task.boxes[color]}."

    @rm.reward
    def found(self) -> bool:
        # Who has not looked has guessed, and who names everything has not understood.
        said = [thing for thing in self.task.boxes.values() if thing in self.trajectory.answer]
        return self.task.wanted in self.opened and said == [self.task.boxes[self.task.wanted]]
