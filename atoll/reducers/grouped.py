"""A reducer for every group of clients: the edges of a hierarchy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Info, Reducer, Spec, Total, Update
from atoll.reducers.around import ReducerAround
from atoll.reducers.secure_mean import PLAN
from atoll.tree import Tree

EDGES = "edges"  # of its diagnostics: what the round takes each group's total from
_NOBODY = -1


@dataclass(frozen=True, eq=False)
class Grouped(ReducerAround[dict[int, Any]]):
    """The named reducer in each group on its own; the total is the sum of theirs.

    A partial aggregate has one of the inner reducer's for each group that came; of nobody it is the total itself, so
    that no reducer, and no protocol, is asked for a sum of nobody. Every group has a state of its own, and its own
    part of a round's plan.
    """

    inner: Reducer[Any]
    group: Tensor  # (N,) of each client
    groups: int

    def spec(self) -> Spec:
        return self.inner.spec()

    def init(self, like: Tree) -> Tree:
        return {str(g): self.inner.init(like) for g in range(self.groups)}

    def zero(self, like: Tree) -> dict[int, Any]:
        return {_NOBODY: Total.zero(like)}

    def lift(self, updates: Update, info: Info, key: Tensor) -> dict[int, Any]:
        return self.lift_scaled(updates, {}, info, key)

    def lift_scaled(self, updates: Update, factors: Tree, info: Info, key: Tensor) -> dict[int, Any]:
        group = self.group[info.id.cpu()]
        present = sorted(set(group.tolist()))
        if len(present) == 1:
            return {present[0]: self.inner.lift_scaled(updates, factors, info, key)}
        return {g: self._lifted((group == g).nonzero()[:, 0], updates, factors, info, key) for g in present}

    def _lifted(self, at: Tensor, updates: Update, factors: Tree, info: Info, key: Tensor) -> Any:
        here = at.to(updates.weight.device)
        some = Update(tree.rows(updates.value, here), updates.weight[here])
        shared = {id(x): x[here] for x in tree.leaves(factors)} if factors else {}
        by = tree.map(lambda x: shared[id(x)], factors) if factors else factors
        return self.inner.lift_scaled(some, by, Info(*(x[at.to(x.device)] for x in info)), key)

    def merge(self, a: dict[int, Any], b: dict[int, Any]) -> dict[int, Any]:
        both = {g: self.inner.merge(a[g], b[g]) for g in (a.keys() & b.keys()) - {_NOBODY}}
        return {g: both.get(g, a.get(g, b.get(g))) for g in sorted(a.keys() | b.keys())}

    def finish(self, partial: dict[int, Any], state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        came = sorted(g for g in partial if g != _NOBODY)
        plans, state = state.get(PLAN, {}), tree.without(state, (PLAN,))
        if not came:
            return partial[_NOBODY], state, {}
        own = {g: {**state[str(g)], **_plan(plans, g)} for g in came}
        ends = {g: self.inner.finish(partial[g], own[g], _key(key, g)) for g in came}
        totals = [ends[g][0] for g in came]
        said = {str(g): end[2] for g, end in ends.items() if end[2]}
        new = {**state, **{str(g): end[1] for g, end in ends.items()}}
        return reduce(Total.merge, totals), new, {**said, EDGES: _rows(came, totals)}

    def tolerates(self, clients: int) -> int:
        return self.inner.tolerates(clients // self.groups)

    def breaks_at(self, clients: int) -> int | None:
        return self.inner.breaks_at(clients // self.groups)

    def is_plain_mean(self, clients: int) -> bool:
        return self.inner.is_plain_mean(clients // self.groups)

    def check_cohort(self, clients: int) -> None:
        self.inner.check_cohort(clients // self.groups)


def _plan(plans: Tree, group: int) -> Tree:
    """What a round has put into the state for this group's reducer to read."""
    return {PLAN: plans[str(group)]} if str(group) in plans else {}


def _key(key: Tensor, group: int) -> Tensor:
    """The first group draws as if it were the only one."""
    return key if group == 0 else rng.fold_name(key, "group", group)


def _rows(groups: list[int], totals: list[Total]) -> Tree:
    """The groups' totals, stacked."""
    value = tree.map(lambda *xs: torch.stack(xs), *(total.value for total in totals))
    weight, count = (torch.stack([getattr(total, name) for total in totals]) for name in ("weight", "count"))
    return {"group": torch.tensor(groups), "value": value, "weight": weight, "count": count}
