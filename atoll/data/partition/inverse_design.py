"""Inverse design: from the skew that is wanted to the alpha that gives it."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from atoll.data.measures import emd
from atoll.data.partition import assign
from atoll.data.partition.dirichlet import Dirichlet
from atoll.errors import PartitionError

Ints = NDArray[np.int64]

TOLERANCE = 0.02
_LOW, _HIGH = math.log(1e-3), math.log(1e5)
_STEPS = 24
_NEAR = np.linspace(-0.2, 0.2, 21)  # in log alpha: where a draw jumps, one beside it may do


class JumpError(PartitionError):
    """The draws of one key pass over the skew that is wanted; those of another may not."""


@dataclass(frozen=True)
class Design:
    """An alpha, the skew that its draw has, and its smallest client."""

    alpha: float
    emd: float
    smallest: int


def design(labels: Tensor, clients: int, target_emd: float, minimum: int, key: Tensor) -> Design:
    """The alpha with which `Dirichlet(clients, alpha, minimum)` under this key has the mean EMD asked for.

    EMD as in `measures.count_table`: sum over c of (n_c / n) |p_c - q|_1, in 0..2. Every alpha is tried with the same
    random numbers, so that the skew falls nearly evenly as alpha grows, and its logarithm can be halved in. A
    PartitionError says why there is none.

    >>> import torch
    >>> from atoll import rng
    >>> found = design(torch.arange(5000) % 10, clients=50, target_emd=0.6, minimum=20, key=rng.key(0))
    >>> abs(found.emd - 0.6) <= 0.02, found.smallest >= 20
    (True, True)
    """
    totals = np.bincount(assign.classes_of(labels, "designed"))
    return search(totals, clients, target_emd, minimum, key)


def search(totals: Ints, clients: int, target: float, minimum: int, key: Tensor) -> Design:
    """`design`, from the number of rows of each class."""
    assign.check_enough_rows(clients, minimum, int(totals.sum()))
    q = totals / totals.sum()
    largest = float(2 * (1 - (q * q).sum()))
    if not 0 < target <= largest:
        raise PartitionError(
            f"partition.emd: {target:g} is not between 0 and {largest:.2f}, the EMD of clients with one class each "
            "on these labels. Use a number in between."
        )
    low, high, designs = _LOW, _HIGH, list[Design]()
    for _ in range(_STEPS):
        middle = (low + high) / 2
        design = _design_at(totals, clients, minimum, math.exp(middle), key)
        designs += [design] if design else []
        low, high = (middle, high) if design is None or design.emd > target else (low, middle)
    for step in _NEAR if _off(designs, target) > TOLERANCE else ():
        design = _design_at(totals, clients, minimum, math.exp(low + float(step)), key)
        designs += [design] if design else []
    if _off(designs, target) > TOLERANCE:
        raise _why(designs, clients, target, minimum)
    return min(designs, key=lambda d: abs(d.emd - target))


def _design_at(totals: Ints, clients: int, minimum: int, alpha: float, key: Tensor) -> Design | None:
    """What this alpha gives; None if somebody has less than the minimum in every draw."""
    try:
        counts = Dirichlet(clients, alpha, minimum).counts(totals, key).T
    except PartitionError:
        return None
    return Design(alpha, emd(counts), int(counts.sum(1).min()))


def _off(designs: list[Design], target: float) -> float:
    return min((abs(d.emd - target) for d in designs), default=math.inf)


def _why(designs: list[Design], clients: int, target: float, minimum: int) -> PartitionError:
    if not designs:
        return PartitionError(
            f"partition.minimum: no alpha gives {clients} clients at least {minimum} examples each. "
            "Use fewer clients or a smaller minimum."
        )
    most, least = max(designs, key=lambda d: d.emd), min(designs, key=lambda d: d.emd)
    if most.emd < target:
        return PartitionError(
            f"partition.emd: with at least {minimum} examples each, {clients} clients reach {most.emd:.2f} "
            f"(alpha = {most.alpha:.3g}), not {target:g}. Use a smaller minimum, fewer clients, or a smaller emd."
        )
    if least.emd > target:
        return PartitionError(
            f"partition.emd: with so few examples the draws go down to {least.emd:.2f}, not {target:g}. "
            "Use fewer clients or a larger emd."
        )
    near = min(designs, key=lambda d: abs(d.emd - target))
    return JumpError(
        f"partition.emd: the draws of this key jump over {target:g}; the nearest is {near.emd:.3f} "
        f"(alpha = {near.alpha:.3g}). Use that, or another seed."
    )
