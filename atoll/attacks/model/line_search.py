"""The largest value of a function of one number that is worth few evaluations: each asks the defence."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from atoll.core import AdversaryView


def line_maximum(f: Callable[[float], float], first: float, most: float, evaluations: int) -> float:
    """An x from 0 to `most` that makes f large: double the step while that helps, then halve it on both sides.

    >>> round(line_maximum(lambda x: -((x - 5.0) ** 2), 1.0, 100.0, 40), 3)
    5.0
    """
    x, best, step, left = 0.0, f(0.0), min(first, most), evaluations - 1
    while left and x + step <= most and (value := f(x + step)) > best:
        x, best, step, left = x + step, value, 2 * step, left - 1
    while left > 0 and step > 1e-6 * first:
        step /= 2
        for tried in (x + step, x - step):
            if 0 <= tried <= most and left > 0:
                value, left = f(tried), left - 1
                if value > best:
                    x, best = tried, value
                    break
    return x


def strongest(seen: AdversaryView, crafted: Callable[[float], Tensor], most: float, evaluations: int) -> Tensor:
    """The row of a family for which the defence ends farthest from the mean of benign updates, (D,)."""
    reduce, mean = seen.reduce, seen.benign.mean(0)
    assert reduce is not None, "an attack that knows the defence is given it"

    def damage(factor: float) -> float:
        return float((reduce(seen.alike(crafted(factor))) - mean).norm())

    return crafted(line_maximum(damage, 1.0, most, evaluations))
