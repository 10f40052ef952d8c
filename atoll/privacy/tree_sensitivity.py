"""The sensitivity of binary tree aggregation (Kairouz et al., 2021).

Leaves are rounds; a node is released when its last leaf is there, so only complete nodes count. A unit adds to every
node that holds one of its turns: if its turns point the same way, the square of the sensitivity is Σ over nodes of
(its turns in the node)². No other directions do worse, since all counts are at least 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from atoll.privacy.events import TreeAggregation


def tree_sensitivity(event: TreeAggregation) -> float:
    """The sensitivity of all nodes together to one unit, whose one-round contribution has length 1.

    Exact for the pattern "cyclic"; for "separated" a bound that holds level by level.

    >>> tree_sensitivity(TreeAggregation(1.0, rounds=8, min_separation=8)) ** 2  # a leaf and the three nodes above
    4.0
    """
    square = _cyclic(event) if event.pattern == "cyclic" else _separated(event)
    return float(square**0.5)


def nodes_square(turns: Sequence[int], rounds: int, restart: int | None = None) -> int:
    """Σ over complete nodes of (turns in the node)², for turns at these rounds (0 is the first).

    >>> nodes_square([0, 1], rounds=2)  # two leaves, and a node with both
    6
    """
    length = restart or rounds
    total = 0
    for first in range(0, rounds, length):
        size = min(length, rounds - first)
        inside = [t - first for t in turns if first <= t < first + size]
        width = 1
        while width <= size:
            counts = Counter(t // width for t in inside if (t // width + 1) * width <= size)
            total += sum(n * n for n in counts.values())
            width *= 2
    return total


def _cyclic(event: TreeAggregation) -> int:
    """The worst phase. Where a unit may take only some turns of its phase, the bound for separated turns."""
    if event.max_participations < -(-event.rounds // event.min_separation):
        return _separated(event)
    phases = (range(p, event.rounds, event.min_separation) for p in range(min(event.min_separation, event.rounds)))
    return max(nodes_square(phase, event.rounds, event.restart) for phase in phases)


def _separated(event: TreeAggregation) -> int:
    """At most ceil(width / min_separation) turns in a node, and at most `turns` on a level: as full as they can be."""
    length = min(event.restart or event.rounds, event.rounds)
    total, width = 0, 1
    while width <= length:
        full = min(event.max_participations, -(-width // event.min_separation))
        groups, rest = divmod(event.max_participations, full)
        total += groups * full**2 + rest**2
        width *= 2
    return total
