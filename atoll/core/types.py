"""The small values that pass between rooms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from atoll import tree
from atoll.tree import Tree

_NOTHING: Tree = {}
_FRESH = torch.zeros(())


class Update(NamedTuple):
    """What one client contributes: named parts, and the weight they are averaged with."""

    value: Tree
    weight: Tensor
    message: Tree = _NOTHING  # what travels in its place, where the number of its bytes depends on the data
    staleness: Tensor = _FRESH  # rounds that the server has made since it sent the model, for transforms

    def scaled(self, factors: Tree) -> Update:
        """Every tensor times its number of this tree, of one client or of a stack of them; {}: as it is."""
        return self._replace(value=tree.map(_times, self.value, factors)) if factors else self


class Info(NamedTuple):
    """What a client knows of its own work this round; of a stack of clients, one entry each."""

    id: Tensor
    examples: Tensor
    steps: Tensor
    staleness: Tensor = _FRESH  # rounds that the server has made since it sent the model


@dataclass(frozen=True)
class Total:
    """A weighted sum over clients. A monoid: chunks, ranks and network arrivals merge in any order."""

    value: Tree
    weight: Tensor
    count: Tensor
    invited: int | None = None  # clients that were asked, whether or not they contributed; known to the server's side

    @classmethod
    def zero(cls, like: Tree) -> Total:
        """The sum over nobody, for updates like this one."""
        none = torch.zeros((), device=tree.device(like))
        return cls(tree.zeros_like(like), none, none.clone())

    def merge(self, other: Total) -> Total:
        return Total(tree.add(self.value, other.value), self.weight + other.weight, self.count + other.count)

    def mean(self) -> Tree:
        """The weighted mean of every part."""
        return tree.scale(self.value, 1.0 / self.weight)


@dataclass(frozen=True)
class Stack:
    """Updates side by side: leaves (C, ...), weights (C,). A monoid by concatenation."""

    updates: Update
    info: Info

    @classmethod
    def zero(cls, like: Tree) -> Stack:
        """A stack of nobody."""
        none = torch.zeros(0, device=tree.device(like))
        value = tree.map(lambda x: x.new_zeros((0, *x.shape)), like)
        return cls(Update(value, none), Info(none.long(), none, none, none))

    def merge(self, other: Stack) -> Stack:
        a, b = self.updates, other.updates
        value = tree.cat([a.value, b.value]) if tree.leaves(a.value) else a.value
        info = Info(*(torch.cat([x, y]) for x, y in zip(self.info, other.info, strict=True)))
        return Stack(Update(value, torch.cat([a.weight, b.weight])), info)

    def __len__(self) -> int:
        return len(self.updates.weight)


def _times(x: Tensor, by: Tensor) -> Tensor:
    return x * by.reshape(by.shape + (1,) * (x.dim() - by.dim()))


@dataclass(frozen=True)
class Cohort:
    """The clients of one round: who they are and which examples they see, never the examples themselves.

    `plan[c, s, :count[c, s]]` are the rows of the data that client c sees in step s; what follows is padding.
    """

    id: Tensor  # (C,)
    examples: Tensor  # (C,) float: the distinct examples of the client, its usual weight
    steps: Tensor  # (C,)
    plan: Tensor  # (C, S, B) rows of the data
    count: Tensor  # (C, S) real examples in each batch; 0 where it drew none, or the client has taken its `steps`

    def rows(self, index: Tensor | slice) -> Cohort:
        """Some of the clients, in the order given."""
        return Cohort(self.id[index], self.examples[index], self.steps[index], self.plan[index], self.count[index])

    def __len__(self) -> int:
        return len(self.id)


Scheme = Literal[
    "everyone", "fixed", "fixed_with_replacement", "fraction", "poisson", "cyclic", "cyclic_poisson", "available"
]


@dataclass(frozen=True)
class Participation:
    """How a cohort was really drawn: what a privacy accountant may rely on, and nothing more."""

    scheme: Scheme
    population: int
    size: int | None = None  # clients drawn, where that is fixed
    probability: float | None = None  # of each client that has its turn, on its own, where they are independent
    min_separation: int | None = None  # rounds between two turns of one client, at least
    replacement: bool = False

    @property
    def expected(self) -> float | None:
        """Clients in a round, on average; None where that is not fixed.

        >>> Participation("cyclic_poisson", 100, probability=0.5, min_separation=10).expected
        5.0
        """
        if self.probability is None:
            return self.size
        return self.probability * self.population / (self.min_separation or 1)
