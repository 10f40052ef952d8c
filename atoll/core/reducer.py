"""How many updates become one."""

from __future__ import annotations

from typing import Any, Protocol

from atoll.core.transform import Spec
from atoll.core.types import Update
from atoll.tree import Tree


class Partial(Protocol):
    """What is known of some of the clients; merges with what is known of the others."""

    def merge(self, other: Any) -> Any:
        """Both together."""
        ...


class Reducer(Protocol):
    """`lift` a stack of updates, `merge` the parts in any order, `finish` once."""

    def spec(self) -> Spec:
        """What is certain about updates that this reducer takes."""
        ...

    def lift(self, updates: Update) -> Any:
        """A partial result of a stack of updates: (C, ...) leaves and (C,) weights."""
        ...

    def finish(self, partial: Any) -> Any:
        """The `Total` that the server applies."""
        ...


def lift(reducer: Reducer, updates: Update, factors: Tree) -> Any:
    """`lift` of updates times what each of their tensors is still to be multiplied by, leaves (C,).

    A reducer that can do that in passing has a `lift_scaled`.
    """
    if factors and hasattr(reducer, "lift_scaled"):
        return reducer.lift_scaled(updates, factors)
    return reducer.lift(updates.scaled(factors))
