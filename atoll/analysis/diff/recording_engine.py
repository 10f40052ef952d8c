"""An engine that is looked over the shoulder: the same bits, and every client's update beside them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from atoll import tree
from atoll.core import (
    ClientStates,
    Cohort,
    Engine,
    Info,
    Pending,
    Program,
    Reducer,
    Request,
    Spec,
    Total,
    Train,
    Trained,
    Update,
)
from atoll.engines import LocalEngine
from atoll.tree import Tree


@dataclass(frozen=True)
class Seen:
    """What went into a round and what came out of every client, on the host."""

    settings: Tree
    sent: Tree
    per_client: bool  # does `sent` have a row for every client?
    cohort: Cohort
    own: Tree  # client state of the cohort, before the round; {} where they keep none
    finite: Tensor  # (C,)
    updates: Tree  # {"value", "weight"}: rows in the order of `kept`
    kept: Tensor  # the places in the cohort of those whose update was finite, in order


@dataclass(frozen=True)
class _Both:
    """What a reducer knows of some clients, and their updates."""

    inner: Any
    updates: tuple[Update, ...]


@dataclass(frozen=True)
class _Beside(Reducer[_Both]):
    """The reducer of the run, which sees what it always sees; and every update beside it."""

    inner: Reducer[Any]

    def spec(self) -> Spec:
        return Spec(additive=False)  # updates are held on to, so an engine must not use their place again

    def zero(self, like: Tree) -> _Both:
        return _Both(self.inner.zero(like), ())

    def lift(self, updates: Update, info: Info, key: Tensor) -> _Both:
        return self.lift_scaled(updates, {}, info, key)

    def lift_scaled(self, updates: Update, factors: Tree, info: Info, key: Tensor) -> _Both:
        """As the one inside does it, so that its bits are the same."""
        return _Both(self.inner.lift_scaled(updates, factors, info, key), (updates.scaled(factors),))

    def merge(self, a: _Both, b: _Both) -> _Both:
        return _Both(self.inner.merge(a.inner, b.inner), a.updates + b.updates)

    def finish(self, partial: _Both, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        return self.inner.finish(partial.inner, state, key)


@dataclass
class Recording(Engine):
    """Answers every request as its engine does; while `on`, keeps what it saw of the last round.

    Only a round's own training is looked at: evaluation and BatchNorm's second pass run other programs.
    """

    name: ClassVar[str] = "recording"

    inner: LocalEngine
    program: Program
    on: bool = False
    seen: Seen | None = None
    _beside: Program = field(init=False)

    def __post_init__(self) -> None:
        self._beside = replace(self.program, reducer=_Beside(self.program.reducer))

    @property
    def notes(self) -> list[str]:  # type: ignore[override]
        """Those of the engine inside."""
        return self.inner.notes

    def submit(self, request: Request) -> Pending[Any]:
        if not self.on or not isinstance(request, Train) or request.program is not self.program:
            return self.inner.submit(request)
        cohort = self.inner.data.plan(request)
        own = _host(self.inner.store.read(request.ids))
        settings, sent = _host(request.settings), _host(request.sent)
        trained: Trained = self.inner.run(replace(request, program=self._beside))
        stacks = [_host({"value": u.value, "weight": u.weight}) for u in trained.partial.updates]
        order = torch.argsort(trained.order)
        rows = tree.rows(tree.cat(stacks), order) if stacks else {}
        places = trained.order[order].cpu()
        self.seen = Seen(settings, sent, request.per_client, cohort, own, trained.finite.cpu(), rows, places)
        return Pending.done(replace(trained, partial=trained.partial.inner))

    def expect(self, rounds: int) -> None:
        self.inner.expect(rounds)

    def state(self) -> ClientStates:
        return self.inner.state()

    def load(self, pieces: Iterable[tuple[Tensor, Tree]]) -> None:
        self.inner.load(pieces)

    def choice(self) -> dict[str, Any]:
        return self.inner.choice()


def _host(state: Tree) -> Tree:
    """A copy on the host, which no later step can change."""
    return tree.map(lambda x: x.detach().cpu().clone(), state)  # type: ignore[no-any-return]
