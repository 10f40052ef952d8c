"""Transforms around what edges send up: a chain for every level, in which an edge is the client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Chain, Spec, Total, Transform, Update, schedules_in, transform_name
from atoll.errors import ConfigError, SpecError
from atoll.rounds.edge_sums import SumsOfTurn
from atoll.rounds.edge_totals import EdgeTotals, stacked
from atoll.rounds.edges import Edges
from atoll.tree import Tree
from atoll.wire import Layout

_EVERY, _EACH = "round.transform", "round.level_transforms"


@dataclass(frozen=True, eq=False)
class EdgeTransforms:
    """A bound chain for every level, from the clients up: an edge is the client, the one above it the server.

    The state of a level is {"server": a row for each one above, "own": a row for each edge}; residuals are in "own".
    """

    chains: tuple[Chain, ...]
    written: tuple[Chain, ...] = ()  # the same before they were bound
    numbers: int | None = None  # in an update

    @classmethod
    def on_every_level(cls, transforms: Sequence[Transform], edges: Edges, numbers: int | None) -> EdgeTransforms:
        """The same on all; a ConfigError for noise: nothing says on whose sums it was meant to be."""
        bound = [_bound(transforms, edges, level, numbers, _EVERY) for level in range(edges.levels)]
        for i, transform in enumerate(bound[0].transforms):
            if transform.mechanisms():
                raise ConfigError(
                    f"{_EVERY}.{i}: {transform_name(transform)} on what edges send protects no client that "
                    "could be named, and no epsilon is accounted for it. Put it into [[transform]]: every edge then "
                    "adds it to the sum of its own clients. For noise without an epsilon, on one level: "
                    f"{_EACH}."
                )
        return cls(tuple(bound), (Chain(tuple(transforms)),) * edges.levels, numbers)

    @classmethod
    def on_each_level(cls, lists: Sequence[Sequence[Transform]], edges: Edges, numbers: int | None) -> EdgeTransforms:
        """One list for each level; a ConfigError for a level that is not there, or has none."""
        if len(lists) != edges.levels:
            levels = "there is 1 level" if edges.levels == 1 else f"there are {edges.levels} levels"
            raise ConfigError(
                f"{_EACH}: has {len(lists)} lists, and {levels} of edges. Give one for each, from the clients up, and "
                f"[] where edges send what they have: {_EACH} = [{', '.join(['[]'] * edges.levels)}] is none at all. "
                "What clients send goes through [[transform]]."
            )
        bound = (_bound(x, edges, i, numbers, f"{_EACH}.{i}") for i, x in enumerate(lists))
        return cls(tuple(bound), tuple(Chain(tuple(x)) for x in lists), numbers)

    def with_residues(self, level: int, encoded: Callable[[Chain], Chain], edges: Edges, most: int) -> EdgeTransforms:
        """The same where a protocol sums what up to `most` edges of this level send; a SpecError without a bound."""
        chain, where = encoded(self.written[level]), f"{_EACH}.{level}"
        bound = _bound(chain.transforms, edges, level, self.numbers, where, most)
        return replace(self, chains=(*self.chains[:level], bound, *self.chains[level + 1 :]))

    @property
    def none(self) -> bool:
        return not any(chain.transforms for chain in self.chains)

    def forwards(self, level: int) -> bool:
        """Do edges of this level send what they have as it is?"""
        return not self.chains[level].transforms

    def cautions(self) -> list[str]:
        """Of noise: why there is no epsilon for it."""
        noisy = [(i, m) for i, chain in enumerate(self.chains) for m in chain.mechanisms()]
        return [
            f"{_EACH}.{i}: no epsilon is printed for the noise of {transform_name(m)}. It is measured for an edge as a "
            "whole, whose own server sees what every client sends, and one client can move what its edge sends by up "
            "to twice the bound. For an epsilon of clients put the noise into [[transform]]: every edge then adds it "
            "to the sum of its own clients."
            for i, m in noisy
        ]

    def init(self, like: Tree, edges: Edges) -> Tree:
        """By level, where there are any transforms."""
        return {str(i): self._level(i, like, edges) for i in range(edges.levels) if not self.forwards(i)}

    def upload(self, level: int, like: Tree) -> Layout:
        chain = self.chains[level]
        return chain.upload(like, *chain.init(like))

    def reported(
        self,
        level: int,
        totals: EdgeTotals,
        parents: Tensor,
        invited: Sequence[int],
        state: Tree,
        key: Tensor,
        sums: SumsOfTurn | None = None,
    ) -> tuple[EdgeTotals, Tree]:
        """One level up, through its transforms; `invited`: how many edges each one above waits for.

        `sums`: by a protocol, if one makes them. An edge that it loses keeps what it held back.
        """
        chain, means, own, server = self.chains[level], totals.mean(), list[Tree](), list[Tree]()
        parts: list[dict[int, Total]] = [{} for _ in invited]
        for e, p in enumerate(parents.tolist()):
            mine, view = _row(state["own"], e), chain.client_view(_row(state["server"], p))
            if bool(totals.weight[e] > 0) and (sums is None or sums.takes(p, e)):
                update = Update(tree.rows(means, e), totals.weight[e])
                device = totals.weight.device
                update, mine = chain.client(update, view, mine, rng.fold_name(key, "edge", e).to(device))
                parts[p][e] = Total(tree.scale(update.value, update.weight), update.weight, totals.count[e])
            own.append(mine)
        one = tree.rows(means, 0)
        like = chain.zeros(one, *chain.init(one))
        ends = []
        for p, n in enumerate(invited):
            above, at = _row(state["server"], p), rng.fold_name(key, "sum", p)
            total = _merged(parts[p], like) if sums is None else sums.added(p, parts[p], like, at)
            if parts[p] or chain.releases(n):
                total = Total(total.value, total.weight, total.count, n)
                total, above = chain.server(total, above, rng.fold_name(key, "above", p))
            else:
                total = Total.zero(one)
            ends.append(total)
            server.append(above)
        return stacked(ends), {"server": _joined(server), "own": _joined(own)}

    def _level(self, level: int, like: Tree, edges: Edges) -> Tree:
        server, own = self.chains[level].init(like)
        above = 1 if level + 1 == edges.levels else edges.sizes[level + 1]
        return {"server": _copies(server, above), "own": _copies(own, edges.sizes[level])}


def _merged(parts: Mapping[int, Total], like: Tree) -> Total:
    total = Total.zero(like)
    for part in parts.values():
        total = total.merge(part)
    return total


def _bound(
    transforms: Sequence[Transform],
    edges: Edges,
    level: int,
    numbers: int | None,
    where: str,
    most: int | None = None,
) -> Chain:
    """Checked with what is certain of what edges of this level send."""
    chain = Chain(tuple(transforms))
    if schedules_in(chain):
        raise ConfigError(f"{where}: schedules are followed by [[transform]] alone. Give a number.")
    try:
        return chain.bind(Spec(cohort=_edges_in_a_sum(edges, level) if most is None else most, size=numbers))[0]
    except (SpecError, ConfigError) as e:
        raise type(e)(f"{where}: {e} Clients are the edges of level {level + 1} here.") from e


def _edges_in_a_sum(edges: Edges, level: int) -> int | None:
    """How many add up, where that is the same for all above and in every round."""
    counts = set(np.bincount(edges.parents(level)).tolist())
    return counts.pop() if len(counts) == 1 and edges.shares[level + 1] == 1 else None


def _copies(state: Tree, n: int) -> Tree:
    return tree.map(torch.clone, tree.stack(state, n))  # type: ignore[no-any-return]


def _joined(rows: list[Tree]) -> Tree:
    return tree.map(lambda *xs: torch.stack(xs), *rows) if tree.leaves(rows[0]) else rows[0]


def _row(rows: Tree, i: int) -> Tree:
    return tree.rows(rows, i) if tree.leaves(rows) else rows
