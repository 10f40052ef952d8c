"""Plans of an all-reduce as schedules of sends: who sends which part to whom in which step (OARF's execution plans)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoll.rounds.decentralised.topology import Ints

Plan: TypeAlias = Literal["ring", "tree", "full"]


class Sends(NamedTuple):
    """One step: all of these travel at once. `adds`: the receiver adds the part to its own, else takes it as it is."""

    source: Ints
    target: Ints
    part: Ints  # of `parts` pieces of the vector
    adds: bool


class SendSchedule(NamedTuple):
    """All steps of an all-reduce among so many, over a vector in so many parts."""

    nodes: int
    parts: int
    steps: tuple[Sends, ...]


def schedule(plan: Plan, nodes: int) -> SendSchedule:
    """After it, all nodes hold the sum of all.

    ring: 2 (n - 1) steps with one n-th each: the sum of every part goes round once, then the parts do (Patarasuk and
    Yuan, 2009). tree: the vector up a binary tree and down again, 2 ceil(log2 n) steps. full: all to all, in one step.

    >>> [len(schedule(plan, 8).steps) for plan in ("ring", "tree", "full")]
    [14, 6, 1]
    """
    steps = {"ring": _ring, "tree": _tree, "full": _full}[plan](nodes)
    return SendSchedule(nodes, max(1, nodes) if plan == "ring" else 1, tuple(steps))


def execute(plan: SendSchedule, vectors: NDArray[Any]) -> NDArray[Any]:
    """What every node holds after it, from what each held: (n, d) both."""
    held = vectors.copy()
    bounds = part_bounds(plan, vectors.shape[1])
    for step in plan.steps:
        before = held.copy()  # all of a step travel at once
        for source, target, part in zip(step.source, step.target, step.part, strict=True):
            piece = slice(bounds[part], bounds[part + 1])
            held[target, piece] = (held[target, piece] if step.adds else 0) + before[source, piece]
    return held


def part_bounds(plan: SendSchedule, numbers: int) -> Ints:
    """(parts + 1,) where the parts of a vector begin and end: they differ by one number at most."""
    return np.arange(plan.parts + 1, dtype=np.int64) * numbers // plan.parts


def _ring(n: int) -> Iterator[Sends]:
    i = np.arange(n)
    for adds in (True, False):
        for step in range(n - 1):
            part = (i - step) % n if adds else (i + 1 - step) % n
            yield Sends(i, (i + 1) % n, part, adds)


def _tree(n: int) -> Iterator[Sends]:
    strides = [1 << b for b in range((n - 1).bit_length())]
    for stride in strides:
        children = np.arange(stride, n, 2 * stride)
        yield Sends(children, children - stride, np.zeros_like(children), True)
    for stride in reversed(strides):
        children = np.arange(stride, n, 2 * stride)
        yield Sends(children - stride, children, np.zeros_like(children), False)


def _full(n: int) -> Iterator[Sends]:
    i = np.arange(n)
    source, target = np.repeat(i, n), np.tile(i, n)
    others = source != target
    if n > 1:
        yield Sends(source[others], target[others], np.zeros(n * (n - 1), np.int64), True)
