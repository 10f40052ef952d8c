"""An engine that is looked over the shoulder: the same bits, and every client's update beside them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Algorithm, Cohort, Job, Reducer, Result, Spec, Update, lift
from atoll.engines import AnyEngine
from atoll.tree import Tree


@dataclass(frozen=True)
class Seen:
    """What went into a round and what came out of every client, on the host."""

    settings: Tree
    sent: Tree
    each: bool  # does `sent` have a row for every client?
    cohort: Cohort
    memory: Tree  # of the clients of the cohort, before the round; {} where they keep none
    finite: Tensor  # (C,)
    updates: Tree  # {"value", "weight"}: rows in the order of `kept`
    kept: Tensor  # the places in the cohort of those whose update was finite, in order


@dataclass(frozen=True)
class _Both:
    """What a reducer knows of some clients, and their updates."""

    inner: Any
    updates: tuple[Update, ...]

    def merge(self, other: _Both) -> _Both:
        return _Both(self.inner.merge(other.inner), self.updates + other.updates)


@dataclass(frozen=True)
class _Beside:
    """The reducer of the run, which sees what it always sees; and every update beside it."""

    inner: Reducer

    def spec(self) -> Spec:
        return Spec(additive=False)  # updates are held on to, so an engine must not use their place again

    def lift(self, updates: Update) -> _Both:
        return self.lift_scaled(updates, {})

    def lift_scaled(self, updates: Update, by: Tree) -> _Both:
        """As the one inside does it, so that its bits are the same."""
        return _Both(lift(self.inner, updates, by), (updates.scaled(by),))

    def finish(self, partial: _Both) -> _Both:
        return replace(partial, inner=self.inner.finish(partial.inner))


class Watching:
    """Does every job as its engine does; while `on`, keeps what it saw of the last round."""

    def __init__(self, inner: AnyEngine, algorithm: Algorithm) -> None:
        self.inner, self.algorithm, self.on = inner, algorithm, False
        self.name, self.reason = inner.name, inner.reason
        self.seen: Seen | None = None

    def run(self, job: Job) -> Result:
        """Do the job. Only a round's own is looked at: evaluation and BatchNorm's second pass run other programs."""
        if not self.on or job.algorithm is not self.algorithm:
            return self.inner.run(job)
        memory = _host(job.memory.read(job.cohort.id))
        settings, sent = _host(job.settings), _host(job.sent)
        result = self.inner.run(replace(job, reducer=_Beside(job.reducer)))
        order, updates = torch.argsort(result.order), result.total.updates if result.total is not None else ()
        stacks = [_host({"value": u.value, "weight": u.weight}) for u in updates]
        rows = tree.rows(tree.cat(stacks), order) if stacks else {}
        kept = result.order[order].cpu()
        self.seen = Seen(settings, sent, job.each, job.cohort, memory, result.finite.cpu(), rows, kept)
        return replace(result, total=None if result.total is None else result.total.inner)


def _host(state: Tree) -> Tree:
    """A copy on the host, which no later step can change."""
    return tree.map(lambda x: x.detach().cpu().clone(), state)  # type: ignore[no-any-return]
