"""A shelf and a cart: the smallest world that a model changes by its calls."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

import rollmill as rm

# The model is told the limit, and a call that breaks it is answered without reaching the shelf.
Count = Annotated[int, Meta(ge=1)]


class Order(rm.Task):
    """What lies on the shelf, and what shall be in the cart at the end."""

    stock: dict[str, int]
    want: dict[str, int]


class Shop(rm.Environment[Order]):
    """Items move between the shelf and the cart, and none appears or is lost."""

    verification = "replay"
    domain = "agent"

    async def setup(self) -> None:
        self.stock = dict(self.task.stock)
        self.cart: dict[str, int] = {}

    @rm.tool
    def take(self, item: str, count: Count = 1) -> str:
        """Move an item from the shelf to the cart."""
        return self._move(item, count, self.stock, self.cart)

    @rm.tool
    def put_back(self, item: str, count: Count = 1) -> str:
        """Move an item from the cart back to the shelf."""
        return self._move(item, count, self.cart, self.stock)

    def _move(self, item: str, count: int, source: dict[str, int], target: dict[str, int]) -> str:
        if source.get(item, 0) < count:
            raise rm.ToolError(f"not enough {item}")
        source[item] -= count
        if not source[item]:
            del source[item]
        target[item] = target.get(item, 0) + count
        return f"cart: {self.cart}"

    @rm.reward
    def right_cart(self) -> bool:
        return self.cart == self.task.want

    @rm.reward(weight=0.2)
    def no_waste(self) -> bool:
        # Without the right cart, who calls nothing would waste nothing and be paid for it.
        return self.right_cart() and not any(_failed(item) for item in self.trajectory.items)

    @rm.reward(weight=0)
    def items_taken(self) -> int:
        return sum(self.cart.values())


def _failed(item: rm.Item) -> bool:
    return isinstance(item, rm.FunctionCallOutput) and item.status == "incomplete"
