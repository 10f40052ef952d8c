"""What CRFL certifies: how large a backdoor may be before the vote of noisy models changes (Xie et al., ICML 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from atoll.errors import ConfigError


@dataclass(frozen=True)
class BackdoorThreat:
    """Who attacks: `attackers` clients in one round, each moving its model by at most `rate` per unit of its backdoor.

    rate = p gamma tau eta q / n of the paper: its weight in the mean, its scaling factor, its local steps, its learning
    rate and the share of its examples that carry the backdoor. `lipschitz` is that of the gradient in the data, L_Z.
    """

    attackers: int
    rate: float
    lipschitz: float = 1.0


def vote_bounds(first: int, second: int, votes: int, alpha: float) -> tuple[float, float]:
    """A lower bound of the winner's probability and an upper one of the runner-up's, together right but for alpha.

    Hoeffding's, as in the paper.

    >>> vote_bounds(1000, 0, 1000, 0.001)
    (0.938..., 0.061...)
    """
    width = math.sqrt(math.log(2 / alpha) / (2 * votes))
    lower = max(0.0, first / votes - width)
    return lower, min(1.0, max(1.0 - lower if first + second == votes else 0.0, second / votes + width))


def certified_radius(
    lower: float, upper: float, max_norm: float, std: float, rounds: int, threat: BackdoorThreat
) -> float:
    """The largest |backdoor| that leaves the vote as it is, `rounds` rounds after the attack; 0 for none.

    RAD^2 = - log(1 - (sqrt(p_A) - sqrt(p_B))^2) sigma^2 / (2 R L_Z^2 sum of rate^2 prod over rounds of
    (2 Phi(rho / sigma) - 1)), with R attackers (Corollary 1). Every round of clipping to rho and noise of deviation
    sigma makes two models harder to tell apart.
    """
    if not (0 <= upper <= 1 and 0 <= lower <= 1):
        raise ConfigError(f"crfl: probabilities are from 0 to 1 (got {lower}, {upper}). Use vote_bounds.")
    if lower <= upper:
        return 0.0
    gap = -math.log1p(-((math.sqrt(lower) - math.sqrt(upper)) ** 2)) if lower < 1 or upper > 0 else math.inf
    shrinks = math.erf(max_norm / std / math.sqrt(2)) ** rounds  # 2 Phi(x) - 1
    strength = 2 * threat.attackers * threat.lipschitz**2 * threat.attackers * threat.rate**2
    return math.sqrt(gap * std**2 / (strength * shrinks))
