"""Inner product manipulation: push the aggregate to the other side of the honest mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from atoll.attacks.model.line_search import strongest
from atoll.core import Attack, Count, Knowledge, Seen
from atoll.tree import Tree


@dataclass(frozen=True)
class InnerProduct(Attack):
    """u = -epsilon mean of benign updates (IPM: Xie et al., 2020). Knows everybody's updates.

    With `sees = "colluders"` the mean is that of what the attackers trained.
    """

    epsilon: Annotated[float, Field(gt=0)] = 0.5
    sees: Literal["colluders", "everybody"] = "everybody"

    @property
    def knows(self) -> Knowledge:
        return self.sees

    def craft(self, seen: Seen, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        return seen.alike(-self.epsilon * seen.benign.mean(0)), state


@dataclass(frozen=True)
class InnerProductSearch(Attack):
    """u = -epsilon mean, with the epsilon that moves this defence most. Knows everybody's updates and the defence.

    A line search of `evaluations` trials of the reducer in every round, as in ByzFL's optimal IPM (Allouah et al., 2023).
    """

    evaluations: Count = 16

    @property
    def knows(self) -> Knowledge:
        return "defence"

    def craft(self, seen: Seen, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        mean = seen.benign.mean(0)
        return seen.alike(strongest(seen, lambda epsilon: -epsilon * mean, 1.0, self.evaluations)), state
