"""Which cells of a sweep run as one stack: those that differ only in what `runs/stackable.py` leaves open."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence

import torch

from atoll.experiment import Device, Experiment
from atoll.runs import partition_names, stack_shape, why_not_stackable
from atoll.suites.sweeps.axes import SweepCell

_MOST = 24  # runs of one stack that differ in their partitions: an interrupt should not leave all of them half done


def stackable(cells: Sequence[SweepCell], across: bool = False) -> list[list[SweepCell]]:
    """The cells in groups that can run as one stack each, in the order of their first cells.

    `across`: also over partitions with as many clients. A GPU gains from more clients side by side; a CPU does not.
    """
    groups: dict[Hashable, list[SweepCell]] = {}
    for cell in cells:
        groups.setdefault(_common(cell.experiment, across) or cell.digest, []).append(cell)
    found = list(groups.values())
    return [piece for group in found for piece in _pieces(group)] if across else found


def stacks(cells: Sequence[SweepCell], device: Device = "auto") -> list[list[SweepCell]]:
    """The same, as this machine would run them on this device."""
    return stackable(cells, across=torch.cuda.is_available() and device != "cpu")


def _pieces(group: list[SweepCell]) -> list[list[SweepCell]]:
    """In as few pieces of at most so many cells as there can be, of nearly equal length."""
    number = -(-len(group) // _MOST)
    size = -(-len(group) // number)
    return [group[i : i + size] for i in range(0, len(group), size)]


def halved(groups: Sequence[Sequence[SweepCell]], workers: int) -> list[list[SweepCell]]:
    """The groups, the largest cut in two until every worker has one and none is more than a worker's share.

    A stack that is larger would leave the others idle.
    """
    found = [list(group) for group in groups]
    share = -(-sum(map(len, found)) // workers)
    while len(largest := max(found, key=len, default=[])) > (share if len(found) >= workers else 1):
        at, middle = found.index(largest), (len(largest) + 1) // 2
        found[at : at + 1] = [largest[:middle], largest[middle:]]
    return found


def _common(experiment: Experiment, across: bool) -> Hashable | None:
    """What cells of one stack have in common: they are planned and measured alike too. None: it runs alone."""
    partition = experiment.partition or {}
    if why_not_stackable([experiment]) or any(":" in name for name in partition_names(experiment.partition)):
        return None  # a partition of a stranger's may read inputs in a way of its own
    numbers = {"seed", "local", "algorithm", "transform"}  # of which the shape tells what matters
    rest = {key: table for key, table in experiment.complete().items() if key not in numbers}
    if across and "clients" in partition:
        rest["partition"] = partition["clients"]
    return json.dumps(rest, sort_keys=True), *stack_shape(experiment).items()
