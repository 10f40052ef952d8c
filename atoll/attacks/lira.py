"""The likelihood ratio of a score with and without the one in question (LiRA; Carlini et al., 2022), as numbers.

>>> target = np.array([2.0, 0.0])
>>> shadows = np.array([[2.1, 1.9], [0.1, -0.1], [1.9, 2.0], [-0.1, 0.0]])
>>> scores = likelihood_ratio(target, shadows, np.array([[True, True], [False, False], [True, True], [False, False]]))
>>> (scores > 0).tolist()
[True, False]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atoll.errors import DataError

Floats = NDArray[np.float64]

ENOUGH_SHADOWS = 32  # runs with one, and without it, from which on its own variance is better than everybody's
_LEAST = 1e-8  # a loss below this is float32's zero


def logit_confidence(loss: Floats) -> Floats:
    """log(p / (1 - p)) of the probability p = exp(-loss) of the true class: nearly normal over runs, unlike p."""
    loss = np.maximum(loss, _LEAST)
    found: Floats = -loss - np.log(-np.expm1(-loss))
    return found


def likelihood_ratio(target: Floats, shadows: Floats, inside: NDArray[np.bool_]) -> Floats:
    """log p(target | in) - log p(target | out) of each unit U, normal in both cases.

    `target` is (U,), `shadows` (S, U) the same statistic of S other runs, and `inside` (S, U) who was in them. Means
    are of each unit alone; variances too if all were in and out `ENOUGH` times, else they are the mean over all units.
    """
    few = min(int(count.min(initial=len(inside))) for count in (inside.sum(0), (~inside).sum(0)))
    if shadows.shape != inside.shape or shadows.shape[1:] != target.shape or few < 2:
        raise DataError(
            f"shadows: every one must be in two of them and out of two (someone: {few}). Train 4 or more, in pairs."
        )
    return _normal(target, shadows, inside) - _normal(target, shadows, ~inside)


def _normal(target: Floats, shadows: Floats, chosen: NDArray[np.bool_]) -> Floats:
    """The log density of the target under the chosen shadows."""
    count = chosen.sum(0)
    mean = (shadows * chosen).sum(0) / count
    own = ((shadows - mean) ** 2 * chosen).sum(0) / (count - 1)
    variance = np.maximum(own if count.min() >= ENOUGH_SHADOWS else np.full_like(own, own.mean()), 1e-12)
    found: Floats = -0.5 * ((target - mean) ** 2 / variance + np.log(variance))
    return found
