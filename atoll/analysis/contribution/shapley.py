"""Shapley's value of every client: exactly, by leaving one out, or from permutations that are cut short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import factorial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from atoll import rng
from atoll.analysis.contribution.coalitions import Coalitions
from atoll.rng import host

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Shares:
    """What every client contributes; `errors` are standard errors of sampling, 0 where nothing was sampled."""

    values: Floats
    errors: Floats
    permutations: int = 0
    truncated: float = 0.0  # the share of steps that were not valued
    converged: bool = True
    degrees: Floats | None = None  # of freedom of the errors; None: one less than there are permutations

    @property
    def freedom(self) -> Floats:
        """Of every client's error."""
        return np.full(len(self.values), float(self.permutations - 1)) if self.degrees is None else self.degrees

    @property
    def halves(self) -> Floats:
        """Half of every client's 95 % interval, t(freedom) errors; NaN where every step was cut short."""
        from scipy.special import stdtrit  # slow to import

        half: Floats = stdtrit(self.freedom, 0.975) * self.errors
        return np.full(len(self.values), np.nan) if self.truncated == 1.0 else half


def summed(rounds: Sequence[Shares]) -> Shares:
    """What clients contribute over rounds. Degrees of freedom are Welch and Satterthwaite's."""
    values, variances = (np.sum(x, 0) for x in ([r.values for r in rounds], [r.errors**2 for r in rounds]))
    spread = np.sum([r.errors**4 / r.freedom for r in rounds], 0)
    least = np.sum([r.freedom for r in rounds], 0)
    degrees = np.divide(variances**2, spread, out=least.astype(np.float64), where=spread > 0)
    permutations = sum(r.permutations for r in rounds)
    truncated = sum(r.truncated * r.permutations for r in rounds) / max(1, permutations)
    return Shares(values, np.sqrt(variances), permutations, truncated, all(r.converged for r in rounds), degrees)


def exact_shapley(game: Coalitions) -> Shares:
    """phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! (v(S + i) - v(S)): all 2^n coalitions.

    >>> worth = {0: 0.0, 1: 1.0, 2: 2.0, 3: 6.0}
    >>> exact_shapley(Coalitions(2, lambda cs: [worth[c] for c in cs])).values.tolist()
    [2.5, 3.5]
    """
    n = game.n
    v = np.array(game.worth(range(1 << n)))
    weights = [factorial(s) * factorial(n - s - 1) / factorial(n) for s in range(n)]
    sizes = np.array([c.bit_count() for c in range(1 << n)])
    values = np.zeros(n)
    for i in range(n):
        without = np.array([c for c in range(1 << n) if not c >> i & 1])
        values[i] = sum(np.array(weights)[sizes[without]] * (v[without | 1 << i] - v[without]))
    return Shares(values, np.zeros(n))


def leave_one_out(game: Coalitions) -> Shares:
    """phi_i = v(all) - v(all but i).

    >>> worth = {1: 1.0, 2: 2.0, 3: 6.0}
    >>> leave_one_out(Coalitions(2, lambda cs: [worth[c] for c in cs])).values.tolist()
    [4.0, 5.0]
    """
    whole, *others = game.worth([game.whole, *(game.whole & ~(1 << i) for i in range(game.n))])
    return Shares(whole - np.array(others), np.zeros(game.n))


def truncated_monte_carlo(
    game: Coalitions, permutations: int, tolerance: float, key: Tensor, together: int = 8
) -> Shares:
    """TMC-Shapley (Ghorbani & Zou, 2019): means over random orders of what a client adds to those before it.

    As soon as those before are within `tolerance` of everybody, the rest of the order adds nothing. `together` orders
    go side by side, so that their coalitions of one size are valued as one stack.
    """
    orders = np.array([host.permutation(rng.fold_host(key, k), game.n) for k in range(permutations)])
    marginals, skipped = [], 0
    for first in range(0, permutations, together):
        found, cut = walked(game, orders[first : first + together], tolerance)
        marginals.append(found)
        skipped += cut
    return shares_of(np.concatenate(marginals), skipped)


def walked(game: Coalitions, orders: NDArray[np.int64], tolerance: float) -> tuple[Floats, int]:
    """What each client adds in each order, (orders, n), and how many steps were cut: all orders step by step."""
    empty, whole = game.worth([0, game.whole])
    count, n = orders.shape
    marginals = np.zeros((count, n))
    coalition, before = [0] * count, np.full(count, empty)
    skipped = 0
    for step in range(n):
        going = [k for k in range(count) if abs(whole - before[k]) > tolerance]
        skipped += count - len(going)
        for k in range(count):
            coalition[k] |= 1 << int(orders[k, step])
        after = game.worth(coalition[k] for k in going)
        for k, value in zip(going, after, strict=True):
            marginals[k, orders[k, step]] = value - before[k]
            before[k] = value
    return marginals, skipped


def shares_of(marginals: Floats, skipped: int, converged: bool = True) -> Shares:
    """Means over orders, and their standard errors."""
    count, n = marginals.shape
    errors = marginals.std(0, ddof=1) / np.sqrt(count) if count > 1 else np.full(n, np.nan)
    return Shares(marginals.mean(0), errors, count, skipped / (count * n), converged)


def guided_orders(n: int, key: Tensor) -> NDArray[np.int64]:
    """One order for each client that begins with it, the others at random (Liu et al., 2022)."""
    orders = []
    for i in range(n):
        others = [j for j in range(n) if j != i]
        rest = host.permutation(rng.fold_host(key, i), n - 1)
        orders.append([i, *(others[j] for j in rest)])
    return np.array(orders, np.int64)


def guided_truncation(game: Coalitions, tolerance: float, key: Tensor, most: int = 20, change: float = 0.05) -> Shares:
    """The game of one round of GTG-Shapley (Liu et al., 2022): guided orders, cut within the round, until it settles.

    It ends when the mean relative change of the values by n more orders is below `change`, or after `most` times n.
    """
    n, marginals, skipped = game.n, np.zeros((0, game.n)), 0
    values = np.zeros(n)
    for turn in range(most):
        found, cut = walked(game, guided_orders(n, rng.fold_host(key, turn)), tolerance)
        marginals, skipped = np.concatenate([marginals, found]), skipped + cut
        before, values = values, marginals.mean(0)
        scale = np.abs(values).mean()
        if turn and (scale == 0 or np.abs(values - before).mean() <= change * scale):
            return shares_of(marginals, skipped)
    return shares_of(marginals, skipped, converged=False)
