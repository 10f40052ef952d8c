"""Requests side by side: the clients of several runs as one cohort, each with its own run's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll import tree
from atoll.core import Cohort, Info, Train
from atoll.engines.program import ClientRows, client_keys, info_of
from atoll.engines.vector.inputs import INFO, Inputs
from atoll.tree import Tree


@dataclass(frozen=True, eq=False)
class StackedRequest:
    """One run's request, with the batches and the client state of that run."""

    request: Train
    cohort: Cohort
    keys: Tensor  # (C, S, 2) for the steps
    rows: ClientRows

    @cached_property
    def info(self) -> Info:
        """What its clients know of their work."""
        return info_of(self.request, self.cohort)


@dataclass(frozen=True)
class Lanes:
    """One request, or several that differ in numbers only: settings, what was sent, cohort, client state, key."""

    lanes: Sequence[StackedRequest]
    cohort: Cohort  # of all lanes, one after the other
    lane: Tensor  # (C,) whose client each is
    keys: Tensor  # (C, S, 2) for the steps
    own: Tensor  # (C, 2) for the transforms
    info: Info

    @property
    def many(self) -> bool:
        """Do settings have a client axis?"""
        return len(self.lanes) > 1

    @property
    def per_client(self) -> bool:
        """Do what was sent and the chain's state have one?"""
        return self.many or self.lanes[0].request.per_client

    def inputs(self, rows: Tensor) -> Inputs:
        """What a round of these clients is told."""
        everybody = len(rows) == len(self.lane) and torch.equal(rows, torch.arange(len(rows)))

        def of(column: Tensor) -> Tensor:
            return column if everybody else column[rows]

        info = {name: of(column) for name, column in zip(INFO, self.info, strict=True)}
        plans = of(self.own), of(self.cohort.plan), of(self.cohort.count), of(self.keys)
        return Inputs(self.settings(rows), self.sent(rows), self.own_state(rows), self.state(rows), info, *plans)

    def settings(self, rows: Tensor) -> Tree:
        """The numeric settings of these clients."""
        return self._of_run([lane.request.settings for lane in self.lanes], rows)

    def state(self, rows: Tensor) -> Tree:
        """The chain's state of these clients."""
        return self._sent([lane.request.state for lane in self.lanes], rows)

    def sent(self, rows: Tensor) -> Tree:
        """What these clients were sent."""
        return self._sent([lane.request.sent for lane in self.lanes], rows)

    def own_state(self, rows: Tensor) -> Tree:
        """What these clients keep, each from its own run."""
        if not self.many:
            return self.lanes[0].rows.read(self.cohort.id[rows])
        lanes = self.lane[rows]
        order = torch.argsort(lanes, stable=True)
        counts = torch.bincount(lanes, minlength=len(self.lanes)).tolist()
        ids = torch.split(self.cohort.id[rows][order], counts)  # type: ignore[no-untyped-call]
        read = [lane.rows.read(part) for lane, part in zip(self.lanes, ids, strict=True) if len(part)]
        if not tree.leaves(read[0]):
            return read[0]
        joined, back = tree.cat(read), torch.argsort(order)
        return tree.map(lambda x: x[back.to(x.device)], joined)  # type: ignore[no-any-return]

    def places(self, rows: Tensor) -> list[Tensor]:
        """For each lane, which of these rows are its clients."""
        lanes = self.lane[rows]
        return [(lanes == r).nonzero()[:, 0] for r in range(len(self.lanes))]

    def _sent(self, trees: list[Tree], rows: Tensor) -> Tree:
        if not self.lanes[0].request.per_client or not tree.leaves(trees[0]):
            return self._of_run(trees, rows)
        joined = tree.cat(trees) if self.many else trees[0]
        return tree.rows(joined, _slice(rows, tree.leaves(joined)[0].device))

    def _of_run(self, trees: list[Tree], rows: Tensor) -> Tree:
        if not self.many or not tree.leaves(trees[0]):
            return trees[0]
        lane = self.lane[rows]
        return tree.map(lambda *xs: torch.stack(xs)[lane.to(xs[0].device)], *trees)  # type: ignore[no-any-return]


def joined(lanes: Sequence[StackedRequest]) -> Lanes:
    """The lanes' clients as one cohort; plans are padded to the longest."""
    if len(lanes) == 1:
        (lane,) = lanes
        whose = torch.zeros(len(lane.cohort), dtype=torch.int64)
        return Lanes(lanes, lane.cohort, whose, lane.keys, client_keys(lane.request), lane.info)
    cohorts = [lane.cohort for lane in lanes]
    whose = torch.arange(len(lanes)).repeat_interleave(torch.tensor([len(cohort) for cohort in cohorts]))
    own = torch.cat([client_keys(lane.request) for lane in lanes])
    s, b = (max(cohort.plan.shape[d] for cohort in cohorts) for d in (1, 2))
    plan = torch.cat([_padded(cohort.plan, s, b) for cohort in cohorts])
    count = torch.cat([F.pad(cohort.count, (0, s - cohort.count.shape[1])) for cohort in cohorts])
    keys = torch.cat([F.pad(lane.keys, (0, 0, 0, s - lane.keys.shape[1])) for lane in lanes])
    info = Info(*(torch.cat(columns) for columns in zip(*(lane.info for lane in lanes), strict=True)))
    ids, examples, steps = (torch.cat([getattr(cohort, k) for cohort in cohorts]) for k in ("id", "examples", "steps"))
    return Lanes(lanes, Cohort(ids, examples, steps, plan, count), whose, keys, own, info)


def _padded(plan: Tensor, steps: int, batch: int) -> Tensor:
    """With the rows of the last column and step repeated: padding must point at a row that is there."""
    c, s, b = plan.shape
    if s == 0:
        return plan.new_zeros((c, steps, batch))
    plan = torch.cat([plan, plan[:, :, :1].expand(c, s, batch - b)], 2)
    return torch.cat([plan, plan[:, :1].expand(c, steps - s, batch)], 1)


def _slice(rows: Tensor, device: torch.device) -> slice | Tensor:
    """A slice where rows follow one another: no copy."""
    if len(rows) and bool((rows[1:] - rows[:-1] == 1).all()):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows.to(device)
