"""Worlds with everything that can differ between places: tools, a user, an end, parts, metrics, notes, failures."""

import rollmill as rm


class Errand(rm.Task):
    stock: dict[str, int]
    want: dict[str, int]
    words: list[str] = []


class Store(rm.Environment[Errand]):
    """A shop whose customer speaks again, and which closes when the till is opened."""

    domain = "agent"

    async def setup(self) -> None:
        self.stock, self.cart, self.said = dict(self.task.stock), {}, list(self.task.words)

    @rm.tool
    def take(self, item: str, count: int = 1) -> str:
        """Move an item from the shelf to the cart."""
        if self.stock.get(item, 0) < count:
            raise rm.ToolError(f"not enough {item}")
        self.stock[item] -= count
        self.cart[item] = self.cart.get(item, 0) + count
        return f"cart: {self.cart}"

    @rm.tool
    def look(self) -> dict[str, int]:
        """What is on the shelf."""
        return self.stock

    @rm.tool
    def pay(self) -> str:
        """Pay, and leave."""
        self.ended = True
        return "ünicode ✓"

    @rm.tool
    def drop(self) -> str:
        """Break something."""
        raise RuntimeError("the shelf fell over")

    async def user(self) -> str | None:
        return self.said.pop(0) if self.said else None

    @rm.reward
    def right_cart(self) -> bool:
        return self.cart == self.task.want

    @rm.reward(weight=0.5)
    def polite(self) -> bool:
        return "thank" in self.trajectory.answer.lower()

    @rm.reward(weight=0)
    def turns_taken(self) -> int:
        return self.trajectory.turns


class Riddle(rm.Task):
    answer: str


class Sphinx(rm.Environment[Riddle]):
    """No tools, one verdict, with a note and a metric."""

    verification = "stateless"

    def verify(self, task: Riddle, response: rm.Response):
        right = task.answer in response.output_text
        return {"reward": float(right), "length": len(response.output_text), "heard": response.output_text or None}


class Broken(rm.Environment):
    """Its verdict fails."""

    verification = "stateless"

    def verify(self, task, response):
        raise ValueError("no verdict today")
