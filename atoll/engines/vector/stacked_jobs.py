"""Jobs side by side: the clients of several runs as one cohort, each with its own run's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll import tree
from atoll.core import Cohort, Job
from atoll.engines.program import client_keys, step_keys
from atoll.tree import Tree


@dataclass(frozen=True)
class Lanes:
    """One job, or several that differ in numbers only: settings, what was sent, cohort, memory, key."""

    jobs: Sequence[Job]
    cohort: Cohort  # of all jobs, one after the other
    lane: Tensor  # (C,) whose client each is
    keys: Tensor  # (C, S, 2) for the steps
    own: Tensor  # (C, 2) for the transforms

    @property
    def many(self) -> bool:
        """Do settings and states have a client axis?"""
        return len(self.jobs) > 1

    @property
    def each(self) -> bool:
        """Does what was sent have one?"""
        return self.many or self.jobs[0].each

    def settings(self, rows: Tensor) -> Tree:
        """The numeric settings of these clients."""
        return self._of_run([job.settings for job in self.jobs], rows)

    def state(self, rows: Tensor) -> Tree:
        """The transforms' state of these clients."""
        return self._of_run([job.state for job in self.jobs], rows)

    def sent(self, rows: Tensor) -> Tree:
        """What these clients were sent."""
        if self.jobs[0].each:
            return tree.rows(tree.cat([job.sent for job in self.jobs]), _slice(rows))
        return self._of_run([job.sent for job in self.jobs], rows)

    def memory(self, rows: Tensor) -> Tree:
        """These clients' memories, each from its own run."""
        if not self.many:
            return self.jobs[0].memory.read(self.cohort.id[rows])
        lanes = self.lane[rows]
        order = torch.argsort(lanes, stable=True)
        counts = torch.bincount(lanes, minlength=len(self.jobs)).tolist()
        ids = torch.split(self.cohort.id[rows][order], counts)  # type: ignore[no-untyped-call]
        read = [job.memory.read(part) for job, part in zip(self.jobs, ids, strict=True) if len(part)]
        if not tree.leaves(read[0]):
            return read[0]
        joined, back = tree.cat(read), torch.argsort(order)
        return tree.map(lambda x: x[back.to(x.device)], joined)  # type: ignore[no-any-return]

    def places(self, rows: Tensor) -> list[Tensor]:
        """For each job, which of these rows are its clients."""
        if not self.many:
            return [torch.arange(len(rows))]
        lanes = self.lane[rows]
        return [(lanes == r).nonzero()[:, 0] for r in range(len(self.jobs))]

    def _of_run(self, trees: list[Tree], rows: Tensor) -> Tree:
        if not self.many or not tree.leaves(trees[0]):
            return trees[0]
        lane = self.lane[rows]
        return tree.map(lambda *xs: torch.stack(xs)[lane.to(xs[0].device)], *trees)  # type: ignore[no-any-return]


def joined(jobs: Sequence[Job], keyed: bool, known: Mapping[int, Tensor]) -> Lanes:
    """The jobs' clients as one cohort; plans are padded to the longest. `known`: keys by the cohort's identity."""
    keys = [known[id(job.cohort)] if id(job.cohort) in known else step_keys(job.cohort, job.key, keyed) for job in jobs]
    own = torch.cat([client_keys(job) for job in jobs])
    lane = torch.arange(len(jobs)).repeat_interleave(torch.tensor([len(job.cohort) for job in jobs]))
    if len(jobs) == 1:
        return Lanes(jobs, jobs[0].cohort, lane, keys[0], own)
    s, b = (max(job.cohort.plan.shape[d] for job in jobs) for d in (1, 2))
    plan = [_padded(job.cohort.plan, s, b) for job in jobs]
    count = [F.pad(job.cohort.count, (0, s - job.cohort.count.shape[1])) for job in jobs]
    padded = [F.pad(k, (0, 0, 0, s - k.shape[1])) for k in keys]
    ids, examples, steps = (torch.cat([getattr(job.cohort, k) for job in jobs]) for k in ("id", "examples", "steps"))
    return Lanes(jobs, Cohort(ids, examples, steps, torch.cat(plan), torch.cat(count)), lane, torch.cat(padded), own)


def _padded(plan: Tensor, steps: int, batch: int) -> Tensor:
    """With the rows of the last column and step repeated: padding must point at a row that is there."""
    c, s, b = plan.shape
    if s == 0:
        return plan.new_zeros((c, steps, batch))
    plan = torch.cat([plan, plan[:, :, :1].expand(c, s, batch - b)], 2)
    return torch.cat([plan, plan[:, :1].expand(c, steps - s, batch)], 1)


def _slice(rows: Tensor) -> slice | Tensor:
    """A slice where rows follow one another: no copy."""
    if len(rows) and bool((rows[1:] - rows[:-1] == 1).all()):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
