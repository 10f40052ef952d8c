"""Who is lost in a round: each client on its own, all at once, or some more than others by what they hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from atoll.clock.quantities import Floats


def lost_clients(probability: Floats, own: Floats, common: float, correlation: float) -> NDArray[np.bool_]:
    """Client i is lost if z_i < Phi^-1(p_i), z_i = sqrt(rho) z + sqrt(1 - rho) e_i: a Gaussian copula (Li, 2000).

    `own` and `common` are uniform draws, of each client and of the round, that become e_i and z. Whatever rho, client i
    is lost with probability p_i; rho = 0 is every client on its own, rho = 1 the same weather for all.

    >>> p, own = np.array([0.3, 0.3]), np.array([0.2, 0.9])
    >>> lost_clients(p, own, 0.5, 0.0).tolist(), lost_clients(p, own, 0.1, 1.0).tolist()
    ([True, False], [True, True])
    """
    if correlation == 0:
        alone: NDArray[np.bool_] = own < probability
        return alone
    from scipy.special import ndtri  # the normal quantile

    latent = np.sqrt(correlation) * ndtri(common) + np.sqrt(1 - correlation) * ndtri(own)
    together: NDArray[np.bool_] = latent < ndtri(probability)
    return together


def by_size(sizes: NDArray[np.int64], exponent: float) -> Floats:
    """How much more than the mean client each is lost: n_i^exponent, scaled to a mean of 1.

    >>> by_size(np.array([1, 3]), 1.0).tolist(), by_size(np.array([1, 3]), 0.0).tolist()
    ([0.5, 1.5], [1.0, 1.0])
    """
    return _mean_one(np.maximum(sizes, 1).astype(np.float64) ** exponent)


def by_labels(counts: NDArray[np.int64], labels: Sequence[int]) -> Floats:
    """The same by the share of a client's examples that have one of these labels; counts are (N, K).

    >>> by_labels(np.array([[2, 2], [4, 0]]), [1]).tolist()
    [2.0, 0.0]
    """
    held = counts[:, list(labels)].sum(1) / np.maximum(counts.sum(1), 1)
    return _mean_one(held.astype(np.float64))


def _mean_one(weights: Floats) -> Floats:
    mean = weights.mean()
    return weights / mean if mean > 0 else np.ones_like(weights)
