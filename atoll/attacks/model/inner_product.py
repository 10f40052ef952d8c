"""Inner product manipulation: push the aggregate to the other side of the honest mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from atoll.attacks.model.line_search import strongest
from atoll.core import AdversaryView, Attack, Count, Knowledge
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

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        return seen.alike(-self.epsilon * seen.benign.mean(0)), state


@dataclass(frozen=True)
class InnerProductSearch(Attack):
    """u = -epsilon mean, with the epsilon that moves this defence most. Knows everybody's updates and the defence.

    A line search of `evaluations` trials of the reducer in every round, as ByzFL's optimal IPM (Allouah et al., 2023).
    """

    evaluations: Count = 16
    most: Annotated[float, Field(gt=0)] = 20.0  # of epsilon: against a mean it would grow for ever

    @property
    def knows(self) -> Knowledge:
        return "defence"

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        mean = seen.benign.mean(0)
        return seen.alike(strongest(seen, lambda epsilon: -epsilon * mean, self.most, self.evaluations)), state
