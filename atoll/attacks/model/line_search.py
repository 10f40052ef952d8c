"""The largest value of a function of one number that is worth few evaluations: each asks the defence."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from atoll.core import Seen


def line_maximum(f: Callable[[float], float], first: float, evaluations: int) -> float:
    """An x >= 0 that makes f large: double the step while that helps, then halve it on both sides.

    >>> round(line_maximum(lambda x: -((x - 5.0) ** 2), 1.0, 40), 3)
    5.0
    """
    x, best, step, left = 0.0, f(0.0), first, evaluations - 1
    while left and (value := f(x + step)) > best:
        x, best, step, left = x + step, value, 2 * step, left - 1
    while left > 0:
        step /= 2
        for tried in (x + step, x - step):
            if tried >= 0 and left > 0:
                value, left = f(tried), left - 1
                if value > best:
                    x, best = tried, value
                    break
    return x


def strongest(seen: Seen, crafted: Callable[[float], Tensor], first: float, evaluations: int) -> Tensor:
    """The row of a family for which the defence ends farthest from the mean of benign updates, (D,)."""
    reduce, mean = seen.reduce, seen.benign.mean(0)
    assert reduce is not None, "an attack that knows the defence is given it"

    def damage(factor: float) -> float:
        return float((reduce(seen.alike(crafted(factor))) - mean).norm())

    return crafted(line_maximum(damage, first, evaluations))
