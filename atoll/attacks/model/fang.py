"""Fang's attacks: move every number against the way in which the model would go (Fang et al., 2020).

The paper attacks local models; here, as in all later work, updates: the model before the round is the origin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from atoll.attacks.model.line_search import line_maximum
from atoll.attacks.model.min_distance import squared_distances
from atoll.attacks.model.naive import client_uniform
from atoll.core import AdversaryView, Attack, Count, Knowledge
from atoll.tree import Tree

_LEAST = 1e-5  # the paper's threshold on lambda


@dataclass(frozen=True)
class FangTrimmedMean(Attack):
    """Beyond the largest or smallest benign value, against the mean's sign. Knows everybody's updates.

    Where the mean rises, uniform in [min / b, min] for min > 0, else in [b min, min]; where it falls, in [max, b max]
    for max > 0, else in [max, max / b]. With `sees = "colluders"` 3 to 4 deviations from the attackers' mean. Made
    against trimmed mean and median.
    """

    b: Annotated[float, Field(gt=1)] = 2.0
    sees: Literal["colluders", "everybody"] = "everybody"

    @property
    def knows(self) -> Knowledge:
        return self.sees

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        near, far = self._ends(seen) if len(seen.honest) else _deviations(seen.own)
        return near + (far - near) * client_uniform(key, seen), state

    def _ends(self, seen: AdversaryView) -> tuple[Tensor, Tensor]:
        low, high = seen.honest.aminmax(dim=0)
        below = torch.where(low > 0, low / self.b, low * self.b)
        above = torch.where(high > 0, high * self.b, high / self.b)
        rises = seen.honest.mean(0) > 0
        return torch.where(rises, low, high), torch.where(rises, below, above)


@dataclass(frozen=True)
class FangKrum(Attack):
    """u = -lambda sign(mean), the largest lambda that Krum would choose. Knows everybody's updates and the defence.

    lambda starts at sqrt(min_i sum of the n - m - 2 least |u_i - u_l|^2 / ((n - 2m - 1) D)) + max_i |u_i| / sqrt(D),
    of n clients with m attackers, and is halved until Krum takes a crafted update or it is below 1e-5 (theorem 1). The
    defence that it takes for granted is Krum, whatever the run uses.
    """

    @property
    def knows(self) -> Knowledge:
        return "defence"

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        benign = seen.benign.double()
        sign = benign.mean(0).sign()
        within, attackers = squared_distances(benign), len(seen.own)
        norms, along = (benign**2).sum(1), benign @ sign
        value = lambda_bound(within, norms, attackers, seen.own.shape[1])
        while value >= _LEAST and not krum_takes(within, norms + 2 * value * along + value**2 * sign @ sign, attackers):
            value /= 2
        return seen.alike((-value * sign).to(seen.own.dtype)), state


@dataclass(frozen=True)
class FangSearch(Attack):
    """u = -lambda sign(mean), with the lambda that moves this defence most. Knows everybody's updates and the defence.

    Fang's objective, sign(mean) . (mean - aggregate), maximised by `evaluations` trials of the run's own reducer.
    """

    evaluations: Count = 16
    most: Annotated[float, Field(gt=0)] = 20.0  # of lambda, as a multiple of the longest update over sqrt(D)

    @property
    def knows(self) -> Knowledge:
        return "defence"

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        mean, reduce = seen.benign.mean(0), seen.reduce
        assert reduce is not None, "an attack that knows the defence is given it"
        sign = mean.sign()

        def damage(value: float) -> float:
            return float(sign @ (mean - reduce(seen.alike(-value * sign))))

        unit = float(seen.benign.norm(dim=1).max()) / math.sqrt(max(1, len(mean))) or 1.0
        return seen.alike(-line_maximum(damage, unit, self.most * unit, self.evaluations) * sign), state


def lambda_bound(within: Tensor, norms: Tensor, attackers: int, size: int) -> float:
    """Fang et al., theorem 1: `within` are squared distances of benign updates (H, H), `norms` squared lengths."""
    clients = len(within) + attackers
    nearest = max(0, min(len(within) - 1, clients - attackers - 2))
    least = within.sort(1).values[:, 1 : nearest + 1].sum(1).min()
    spread = least / (max(1, clients - 2 * attackers - 1) * max(1, size))
    return float(spread.sqrt() + norms.max().sqrt() / math.sqrt(max(1, size)))


def krum_takes(within: Tensor, crafted: Tensor, attackers: int) -> bool:
    """Would Krum choose a crafted update? They are alike, at squared distances `crafted` (H,) from the benign."""
    clients = len(within) + attackers
    nearest = max(1, min(clients - 1, clients - attackers - 2))
    across = crafted[:, None].expand(-1, attackers)
    others = torch.cat([_apart(within), across], 1)
    benign = others.sort(1).values[:, :nearest].sum(1)
    own = torch.cat([crafted.new_zeros(attackers - 1), crafted]).sort().values[:nearest].sum()
    return bool(own < benign.min())


def _apart(within: Tensor) -> Tensor:
    """Distances to others: of an update to itself there is none."""
    return within + torch.diag(within.new_full((len(within),), math.inf))


def _deviations(own: Tensor) -> tuple[Tensor, Tensor]:
    """3 and 4 deviations from the mean, against its sign."""
    mean, deviation = own.mean(0), own.std(0, correction=0)
    away = torch.where(mean > 0, -deviation, deviation)
    return mean + 3 * away, mean + 4 * away
