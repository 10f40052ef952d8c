"""Banded Toeplitz factorisations of prefix sums (Choquette-Choo et al., 2023).

The server releases A(x + C⁻¹z), A the lower triangle of ones: every round's model, if updates are added up. C is lower
triangular Toeplitz with coefficients c of `bands` bands and |c| = 1, so that its columns have length at most 1. The
noise on A x is B z with B = A C⁻¹; the error is the mean square of its entries, for z of variance 1. Two turns of a
unit at least `bands` rounds apart hit columns that do not overlap.

>>> banded(rounds=8, bands=1)  # independent noise: DP-SGD
(1.0,)
>>> error((1.0,), rounds=8)  # the mean of 1, 2, ..., 8
4.5
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError
from atoll.privacy.events import max_participations

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]


@lru_cache(maxsize=64)
def banded(rounds: int, bands: int) -> tuple[float, ...]:
    """The coefficients of C with the smallest error: c_0 > 0 first, of length 1.

    Starts at the first terms of (1 - x)^(-1/2), the square root of the prefix sums (Fichtenberger et al., 2023), and
    goes down the gradient of |A C⁻¹|² |c|², which does not depend on the length of c.
    """
    import numpy as np
    from scipy.optimize import minimize

    if bands < 1 or rounds < 1:
        raise ConfigError(f"banded: needs rounds and bands of at least 1 (got {rounds} and {bands}).")
    c = square_root(min(bands, rounds))
    if len(c) > 1:
        optimum = minimize(_loss, c[1:], args=(rounds,), jac=True, method="L-BFGS-B", options={"maxiter": 500})
        better = np.concatenate([[1.0], optimum.x])
        c = better if _loss(optimum.x, rounds)[0] < _loss(c[1:], rounds)[0] else c
    return tuple(float(x) for x in c / np.linalg.norm(c))


def square_root(terms: int) -> Array:
    """The first terms of (1 - x)^(-1/2): 1, 1/2, 3/8, ..."""
    import numpy as np

    k = np.arange(1, terms)
    coefficients: Array = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    return coefficients


def error(coefficients: tuple[float, ...], rounds: int) -> float:
    """The mean square error of the prefix sums, for z of variance 1: Σ_t (n - t) r_t² / n, r the first column of A C⁻¹.

    Times (noise_multiplier x clip)² it is the expected square error of one coordinate, on average over the rounds.
    """
    import numpy as np

    weight = np.arange(rounds, 0, -1)
    return float(np.sum(weight * _responses(np.array(coefficients), rounds) ** 2) / rounds)


def banded_sensitivity(coefficients: tuple[float, ...], rounds: int, min_separation: int, participations: int) -> float:
    """How far C moves with one unit whose contributions have length 1, exactly.

    Columns do not overlap, and earlier ones are not shorter: the worst turns are the first ones, close together.
    """
    import numpy as np

    if len(coefficients) > min_separation:
        raise ConfigError(
            f"banded: {len(coefficients)} bands need a separation of as many rounds (got {min_separation})."
        )
    squares = np.cumsum(np.square(coefficients))
    times = [i * min_separation for i in range(min(participations, max_participations(rounds, min_separation)))]
    return float(np.sqrt(sum(squares[min(len(squares), rounds - t) - 1] for t in times)))


def _responses(c: Array, rounds: int) -> Array:
    """The first column of A C⁻¹: a step through the filter 1 / c."""
    import numpy as np
    from scipy.signal import lfilter

    column: Array = lfilter([1.0], c, np.ones(rounds))
    return column


def _loss(tail: Array, rounds: int) -> tuple[float, Array]:
    """|A C⁻¹|² |c|² / rounds for c = (1, tail), and its gradient in the tail."""
    import numpy as np
    from scipy.signal import lfilter

    c = np.concatenate([[1.0], tail])
    r = _responses(c, rounds)
    weighted = np.arange(rounds, 0, -1) * r / rounds
    size, spread = float(c @ c), float(weighted @ r)
    if not np.isfinite(spread):
        return 1e300, np.zeros_like(tail)
    back = lfilter([1.0], c, weighted[::-1])[::-1]
    slope = np.array([-2 * (back[j:] @ r[: rounds - j]) for j in range(1, len(c))])
    return size * spread, size * slope + 2 * spread * tail
