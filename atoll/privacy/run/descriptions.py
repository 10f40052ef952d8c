"""Mechanisms, samplers and guarantees in words."""

from __future__ import annotations

import math
from typing import Any

from atoll.core import Calibrated, Chain, Participation, transform_name
from atoll.privacy import Ledger

PrivacyBlock = dict[str, Any]  # of run.json, or of a line of the record
QUICK_BOUND = "quick bound"  # in the place of an accountant's name: an upper bound for a run that goes on


def describe_mechanism(chain: Chain) -> str:
    """The mechanisms of a chain.

    >>> from atoll.transforms import GaussianNoise
    >>> describe_mechanism(Chain((GaussianNoise(1.2),)))
    'gaussian_noise, noise multiplier 1.2'
    """
    mechanisms = []
    for x in chain.mechanisms():
        noise = f", noise multiplier {float(x.noise_multiplier):.6g}" if isinstance(x, Calibrated) else ""
        mechanisms.append(transform_name(x) + noise)
    return "; ".join(mechanisms)


def describe_sampler(participation: Participation) -> str:
    """How cohorts are drawn.

    >>> describe_sampler(Participation("poisson", 100, probability=0.1))
    'poisson, 10 of 100 clients on average'
    """
    scheme = participation.scheme.replace("_", " ")
    size = "" if participation.expected is None else f" {participation.expected:g}"
    average = " on average" if participation.probability is not None else ""
    separation = participation.min_separation
    turns = f", {separation} rounds from turn to turn" if separation else ""
    return f"{scheme},{size} of {participation.population} clients{average}{turns}"


def describe_simulated_sampler(ledger: Ledger) -> str:
    """How the cohorts of the larger system would be drawn."""
    event: Any = ledger.parts[-1][0] if ledger.parts else None
    if event is None:
        return "not drawn yet"
    return f"{event.scheme.replace('_', ' ')}, {event.cohort:g} of {event.population} clients"


def describe_guarantee(block: PrivacyBlock) -> str:
    """What a block of run.json says, in one line."""
    if not block["holds"]:
        return f"not private: {block['why']}"
    return (
        f"epsilon {round_up(block['epsilon']):g} at delta {block['delta']:g} after all rounds "
        f"({block['unit']} level, {block['adjacency']}, {block['accountant']}); {block['mechanism']}"
    )


def round_up(epsilon: float) -> float:
    """Five digits, never below.

    >>> round_up(1.234501)
    1.2346
    """
    if not 0 < epsilon < math.inf:
        return max(0.0, epsilon)
    step = 10.0 ** (math.floor(math.log10(epsilon)) - 4)
    return float(f"{math.ceil(epsilon / step - 1e-9) * step:.6g}")
