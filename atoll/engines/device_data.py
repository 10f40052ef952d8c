"""What an engine works on: the examples, where they are, and who holds which of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from atoll import tree
from atoll.core import PLACE, Cohort, Task, Train
from atoll.data import Population
from atoll.tree import Tree

Decode = Callable[[Tree], Tree]


@dataclass(frozen=True, eq=False)
class DeviceData:
    """Columns on a device, and how clients read them. Data stays in place: batches are row numbers."""

    columns: Tree
    decode: Decode
    device: torch.device
    population: Population
    keyed: bool = True  # does a step draw (dropout, augmentation, noise)?
    unstackable: str | None = None  # why clients of this task cannot be stacked, where that is known
    stochastic: bool = False  # the model draws numbers of its own: they are seeded for each client and step
    evaluation: EvaluationData | None = None

    def plan(self, train: Train) -> Cohort:
        """The batches of these clients, step by step."""
        cohort = self.population.cohort(train.ids, train.order, train.row_table)
        return cohort if train.max_steps is None else _cut(cohort, train.max_steps)


def with_places(columns: Tree, population: Population) -> Tree:
    """Columns and one more: for every row, its place among the examples of the client that holds it."""
    rows = len(tree.leaves(columns)[0])
    return {**columns, PLACE: population.places(rows).to(tree.device(columns))}


@dataclass(frozen=True, eq=False)
class EvaluationData:
    """What models are measured on, and how."""

    task: Task
    metrics: Callable[[dict[str, Any]], dict[str, Any]]  # those that columns of statistics allow
    decode: Decode
    batch: int
    columns: Tree  # of the clients' examples
    own: Population  # how each client reads those that it is measured on
    key: Tensor
    test: Tree | None = None
    test_rows: Tensor | None = None  # None: all
    test_batch: int = 512  # rows of the test data at a time, for clients' own models
    block: int = 1024  # clients' models at a time
    probe: Tree | None = None  # what an attack's success is measured on
    _last: list[tuple[Tensor, Cohort]] = field(default_factory=list, init=False, repr=False)

    def own_rows(self, ids: Tensor) -> Cohort:
        """What these clients are measured on: the same in every round, and mostly asked for the same clients."""
        if not self._last or self._last[0][0] is not ids:
            self._last[:] = [(ids, self.own.cohort(ids, self.key))]
        return self._last[0][1]


def _cut(cohort: Cohort, steps: int) -> Cohort:
    """The first steps of every client. The plan keeps one, so that shapes are what they were."""
    wide = max(1, steps)
    plan, count = cohort.plan[:, :wide], cohort.count[:, :wide]
    count = count if steps else torch.zeros_like(count)
    return replace(cohort, steps=cohort.steps.clamp(max=steps), plan=plan, count=count)
