"""A little is enough: stay within the spread of honest updates, on one side of their mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from atoll.attacks.model.line_search import strongest
from atoll.core import AdversaryView, Attack, Count, Knowledge
from atoll.tree import Tree

_CERTAIN = 1 - 1e-9  # attackers in the majority need not hide: the quantile ends here


def z_max(cohort: int, attackers: int) -> float:
    """Baruch et al., 2019: the largest z at which enough honest updates lie farther out than the attackers.

    s = floor(n / 2 + 1) - m honest updates must lie farther out; z = quantile of (n - m - s) / (n - m); 0 at least.

    >>> round(z_max(50, 24), 4), z_max(20, 1)
    (1.4261, 0.0)
    """
    honest = cohort - attackers
    if honest < 1:
        return 0.0
    supporters = max(1, math.floor(cohort / 2 + 1) - attackers)
    share = (honest - supporters) / honest
    return NormalDist().inv_cdf(min(share, _CERTAIN)) if share > 0.5 else 0.0


@dataclass(frozen=True)
class Alie(Attack):
    """u = mean - z deviation, coordinate by coordinate (ALIE: Baruch et al., 2019). Knows the updates of all attackers.

    Without `z` the paper's closed form for this cohort. With `sees = "everybody"` mean and deviation are of honest
    updates, else of what the attackers trained.
    """

    z: Annotated[float, Field(ge=0)] | None = None
    sees: Literal["colluders", "everybody"] = "colluders"

    @property
    def knows(self) -> Knowledge:
        return self.sees

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        z = z_max(seen.cohort, len(seen.own)) if self.z is None else self.z
        mean, deviation = seen.benign.mean(0), seen.benign.std(0, correction=0)
        return seen.alike(mean - z * deviation), state


@dataclass(frozen=True)
class AlieSearch(Attack):
    """u = mean - z deviation, with the z that moves this defence most. Knows everybody's updates and the defence.

    A line search of `evaluations` trials of the reducer in every round, as in ByzFL's optimal ALIE (Allouah et al.,
    2023).
    """

    evaluations: Count = 16
    most: Annotated[float, Field(gt=0)] = 20.0  # of z: against a mean it would grow for ever

    @property
    def knows(self) -> Knowledge:
        return "defence"

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        mean, deviation = seen.benign.mean(0), seen.benign.std(0, correction=0)
        return seen.alike(strongest(seen, lambda z: mean - z * deviation, self.most, self.evaluations)), state
