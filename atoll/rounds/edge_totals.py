"""Sums of a level of edges, side by side, and what edges do with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Context, Total
from atoll.tree import Tree


@dataclass(frozen=True, eq=False)
class EdgeTotals:
    """A `Total` for every edge of a level: leaves (E, ...), weights and counts (E,)."""

    value: Tree
    weight: Tensor
    count: Tensor

    @classmethod
    def scattered(cls, came: Tree | None, edges: int, like: Tree) -> EdgeTotals:
        """Those of the edges that came, and nothing for the others."""
        device = tree.device(like)
        value = tree.map(lambda x: x.new_zeros((edges, *x.shape)), like)
        nothing = cls(value, torch.zeros(edges, device=device), torch.zeros(edges, device=device))
        if came is None:
            return nothing
        at = came["group"].to(device)
        if len(at) == edges:  # in order, so that nothing moves
            return cls(came["value"], came["weight"], came["count"])
        value = tree.map(lambda x, y: x.index_copy(0, at, y.to(x.dtype)), value, came["value"])
        columns = (getattr(nothing, k).index_copy(0, at, came[k].float()) for k in ("weight", "count"))
        return cls(value, *columns)

    def row(self, edge: int, invited: int | None = None) -> Total:
        return Total(tree.rows(self.value, edge), self.weight[edge], self.count[edge], invited)

    def mean(self) -> Tree:
        """Of every edge; 0 where nobody came."""
        by = torch.where(self.weight > 0, 1 / self.weight, 0.0)
        return tree.map(lambda x: x * _wide(by, x), self.value)  # type: ignore[no-any-return]

    def summed(self, parents: Tensor, count: int) -> EdgeTotals:
        """One level up: over the edges that have one above in common."""
        if count == len(self.weight):
            return self  # every edge has one of its own above, in the same order

        def up(x: Tensor) -> Tensor:
            return torch.stack([x[(parents == p).to(x.device)].sum(0) for p in range(count)])

        return EdgeTotals(tree.map(up, self.value), up(self.weight), up(self.count))


def stacked(totals: Sequence[Total]) -> EdgeTotals:
    value = tree.map(lambda *xs: torch.stack(xs), *(total.value for total in totals))
    return EdgeTotals(value, torch.stack([t.weight for t in totals]), torch.stack([t.count for t in totals]))


def server_halves(
    ctx: Context, totals: EdgeTotals, chain: Tree, invited: Tensor, key: Tensor
) -> tuple[EdgeTotals, Tree]:
    """Every edge as the server of its own clients: the transforms' way back. `chain` has a row for each edge."""
    if not ctx.chain.has_server_side():
        return totals, chain
    ends, states = [], []
    for edge, n in enumerate(invited.tolist()):
        total, state = totals.row(edge, int(n)), tree.rows(chain, edge) if tree.leaves(chain) else chain
        if ctx.chain.releases(int(n)) or bool(total.weight > 0):
            total, state = ctx.chain.server(total, state, _key(key, edge))
        else:
            total = Total.zero(ctx.update_like)
        ends.append(total)
        states.append(state)
    rows = tree.map(lambda *xs: torch.stack(xs), *states) if tree.leaves(chain) else chain
    return stacked(ends), rows


def moved(models: Tree, totals: EdgeTotals) -> Tree:
    """Every edge's model along the mean change of what reported to it: all the way, whatever the server does."""
    mean = totals.mean()

    def along(part: Tree, change: Tree) -> Tree:
        steps = {k: tree.map(lambda x, d: tree.cast_like(x + d, x), part[k], change[k]) for k in change}
        return {**part, **steps}

    parts = (("params", "delta"), ("buffers", "buffers"))
    return {**models, **{name: along(models[name], mean[of]) for name, of in parts if mean.get(of)}}


def changes(models: Tree, before: Tree, like: Tree, weight: Tensor, count: Tensor) -> EdgeTotals:
    """What edges changed since they were sent their model, as sums of this weight."""
    parts = {of: name for name, of in (("params", "delta"), ("buffers", "buffers")) if of in like}
    value = {of: {k: tree.sub(models[name][k], before[name][k]) if isinstance(like[of][k], dict)
                  else models[name][k] - before[name][k] for k in like[of]} for of, name in parts.items()}  # fmt: skip
    return EdgeTotals(tree.map(lambda x: x * _wide(weight, x), value), weight, count)


def _key(key: Tensor, edge: int) -> Tensor:
    """The first edge draws as if it were the only one."""
    return key if edge == 0 else rng.fold_name(key, "edge", edge)


def _wide(column: Tensor, like: Any) -> Tensor:
    return column.reshape(-1, *(1,) * (like.dim() - 1)).to(like.device)
