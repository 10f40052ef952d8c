"""VFLAIR's defence capability score (Zou et al., 2023): how near to "the attack fails, the task is untouched"."""

from __future__ import annotations

import math
from collections.abc import Sequence

BETA = 0.5


def capability(attack: float, ideal_attack: float, main: float, ideal_main: float, beta: float = BETA) -> float:
    """DCS = 1 / (1 + sqrt((1 - beta) (AP - AP*)^2 + beta (MP - MP*)^2)).

    AP is what the attack reaches and AP* what guessing would; MP is the main task's metric and MP* that without attack
    and without defence.

    >>> capability(0.1, 0.1, 0.9, 0.9), round(capability(1.0, 0.0, 0.9, 0.9), 6), round(capability(0, 0, 0, 1, 1), 3)
    (1.0, 0.585786, 0.5)
    """
    apart = (1 - beta) * (attack - ideal_attack) ** 2 + beta * (main - ideal_main) ** 2
    return 1.0 / (1.0 + math.sqrt(apart))


def comprehensive(scores: Sequence[Sequence[float]]) -> float:
    """C-DCS: the mean over types of attack of the mean over attacks of a type (T-DCS).

    >>> comprehensive([[1.0, 0.5], [0.25]])
    0.5
    """
    types = [sum(one) / len(one) for one in scores if one]
    return sum(types) / len(types) if types else math.nan
