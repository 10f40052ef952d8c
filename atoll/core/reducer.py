"""How many updates become one: a monoid with an identity, a state and something to say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import reduce
from typing import ClassVar, Generic, TypeVar

from torch import Tensor

from atoll.core.transform import Spec
from atoll.core.types import Info, Stack, Total, Update
from atoll.tree import Tree

P = TypeVar("P")  # what is known of some of the clients: a partial aggregate


class Reducer(ABC, Generic[P]):
    """`lift` a stack of updates, `merge` partial aggregates in any order, `finish` once, on the server.

    Chunks, processes, edges of a hierarchy and network arrivals are the same `merge`. Engines lift and merge; the round
    finishes, since it holds the state.
    """

    assumes: ClassVar[str] = ""  # what must hold for it to withstand wrong updates, and from when on it does not

    @abstractmethod
    def spec(self) -> Spec:
        """What is certain about updates that this reducer takes."""

    def init(self, like: Tree) -> Tree:
        """The server's state, for updates like this one; {} for none."""
        return {}

    @abstractmethod
    def zero(self, like: Tree) -> P:
        """The identity of `merge`: what is known of nobody."""

    @abstractmethod
    def lift(self, updates: Update, info: Info, key: Tensor) -> P:
        """A partial aggregate of a stack of updates, leaves (C, ...) and weights (C,); `key` is the round's."""

    def lift_scaled(self, updates: Update, factors: Tree, info: Info, key: Tensor) -> P:
        """`lift` of updates whose tensors are still to be multiplied by these factors, leaves (C,); {} for none.

        Clipping leaves its factors to the sum. A reducer that can multiply in passing saves a pass over all updates.
        """
        return self.lift(updates.scaled(factors), info, key)

    @abstractmethod
    def merge(self, a: P, b: P) -> P:
        """What is known of both groups of clients."""

    def merge_all(self, parts: list[P], like: Tree) -> P:
        """All of them as one, in the order given."""
        return reduce(self.merge, parts) if parts else self.zero(like)

    @abstractmethod
    def finish(self, partial: P, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        """The total that the server applies, the new state, and diagnostics: whom it chose, what it dropped."""

    def tolerates(self, clients: int) -> int:
        """How many of so many clients may send anything: the total stays near what the others sent."""
        return 0

    def breaks_at(self, clients: int) -> int | None:
        """How many of so many clients can move the total as far as they like; None: no number of them can."""
        return self.tolerates(clients) + 1

    def check_cohort(self, clients: int) -> None:
        """Refuse (ConfigError) cohorts of so many clients, if it could not do for them what it was asked to do."""

    def is_plain_mean(self, clients: int) -> bool:
        """Is nothing left of a defence for so many, but their plain mean?"""
        return False

    def needs_root(self) -> bool:
        """Does it compare updates to one of the server's own? Then its state has that one under "root"."""
        return False


class StackReducer(Reducer[Stack]):
    """Keeps every update as it came; `finish`, which sees them all, says what becomes of them."""

    def spec(self) -> Spec:
        return Spec(additive=False)

    def zero(self, like: Tree) -> Stack:
        return Stack.zero(like)

    def lift(self, updates: Update, info: Info, key: Tensor) -> Stack:
        return Stack(updates, info)

    def merge(self, a: Stack, b: Stack) -> Stack:
        return a.merge(b)
