"""Clustered federated learning: a cluster is split where its clients pull in different directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from atoll import tree
from atoll.core import Context, Count, Model, Play, Stack, Trained
from atoll.errors import ConfigError
from atoll.reducers import cosine_similarities, mean_and_largest_length
from atoll.rounds.clustered import CLUSTER, Clustered
from atoll.rounds.server_stack import PARTS, sent_rows, stacked_servers, step_groups, written
from atoll.rounds.server_step import client_key
from atoll.tree import Tree

_PART = "delta"  # of an update: what directions are read from
Above0 = Annotated[float, Field(gt=0)]


class Bipartition(NamedTuple):
    """Who leaves a cluster."""

    leaving: NDArray[np.bool_]
    across: float  # the largest similarity between one who stays and one who leaves


@dataclass(frozen=True)
class ClusteredFL(Clustered):
    """Recursive bipartition by the cosine of updates, once a cluster stands still (Sattler et al., 2020: CFL).

    A cluster is split where |mean update| < mean_below and max |update| > largest_above: into the two parts between
    which the largest cosine a is smallest, if sqrt((1 - a) / 2) > gamma. `clusters` is the most there may be: all
    models are there from the start, those not yet in use are copies of the first. A cluster is split only in a round
    to which all its members come. Both parts go on from the model that they had in common, with that round's updates
    of their own.
    """

    clusters: Count = 8
    mean_below: Above0 = 0.4
    largest_above: Above0 = 1.6
    gamma: Annotated[float, Field(ge=0, lt=1)] = 0.0

    def __post_init__(self) -> None:
        if self.mean_below >= self.largest_above:
            raise ConfigError(
                f"round.mean_below: {self.mean_below:g} must be below round.largest_above ({self.largest_above:g}): a "
                "cluster is split where the mean update is small and single ones are not. Both are lengths of updates "
                "of this model; see diagnostics.clusters in the record of a run for what they are."
            )

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        everybody = torch.zeros(ctx.population, dtype=torch.int64)
        return {**stacked_servers(ctx, [model] * self.clusters, key), CLUSTER: everybody}

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        ids, participation = ctx.sample()
        which = self.members(state, ids)
        trained = yield ctx.train(*sent_rows(ctx, state, which), ids, client_key(key), per_client=True)
        state, which, lengths = self._split(state, trained, ids, which)
        step = step_groups(ctx, state, trained, which, key)
        return self.ended(ctx, state, step, trained, (ids, participation), which, lengths)

    def _split(self, state: Tree, trained: Trained, ids: Tensor, which: Tensor) -> tuple[Tree, Tensor, Tree]:
        """Who is in which cluster from now on, a copy of the parent's row for each new one, and the two lengths."""
        sizes, order = self.sizes(state), trained.order.cpu()
        used = int((sizes > 0).sum())
        means, largest = torch.zeros(self.clusters), torch.zeros(self.clusters)
        for number in sorted(set(which.tolist())):
            inside = order[which[order] == number]
            part = _of_rows(trained.partial, (which[order] == number).nonzero()[:, 0])
            if not len(part):
                continue
            means[number], largest[number] = mean_and_largest_length(part, _PART)
            whole = len(set(ids[inside].tolist())) == len(part) == int(sizes[number])
            split = self._decided(part, float(means[number]), float(largest[number])) if whole else None
            if split is not None and used < self.clusters:
                parent = tree.map(lambda x, n=number: x[n], tree.select(state, PARTS))
                state = {**state, **written(tree.select(state, PARTS), used, parent)}
                which = which.index_fill(0, inside[torch.from_numpy(split.leaving)], used)
                used += 1
        return state, which, {"mean_length": means, "largest_length": largest}

    def _decided(self, part: Stack, mean: float, largest: float) -> Bipartition | None:
        if len(part) < 2 or mean >= self.mean_below or largest <= self.largest_above:
            return None
        split = bipartition(cosine_similarities({_PART: part.updates.value[_PART]}, len(part)).numpy())
        return split if np.sqrt((1 - split.across) / 2) > self.gamma else None


def bipartition(similar: NDArray[np.float64]) -> Bipartition:
    """The two parts between which the largest similarity is smallest; the first row stays.

    Found by leaving out the weakest link of the maximum spanning tree: every other cut has a stronger one across it.

    >>> bipartition(np.array([[1.0, 0.9, -0.5], [0.9, 1.0, -0.4], [-0.5, -0.4, 1.0]])).leaving.tolist()
    [False, False, True]
    """
    n = len(similar)
    joined, best, parent = np.zeros(n, bool), similar[0].copy(), np.zeros(n, np.int64)
    joined[0], order = True, []
    for _ in range(n - 1):  # Prim's, from the first row on
        new = int(np.where(joined, -np.inf, best).argmax())
        order.append((new, int(parent[new]), float(best[new])))
        joined[new] = True
        nearer = similar[new] > best
        best, parent = np.where(nearer, similar[new], best), np.where(nearer, new, parent)
    weakest = min(range(n - 1), key=lambda i: order[i][2])
    leaving = np.zeros(n, bool)
    for i, (new, above, _) in enumerate(order):
        leaving[new] = i == weakest or leaving[above]
    return Bipartition(leaving, order[weakest][2])


def _of_rows(stack: Stack, rows: Tensor) -> Stack:
    here = rows.to(stack.updates.weight.device)
    value = tree.rows(stack.updates.value, here)
    info = type(stack.info)(*(x[rows.to(x.device)] for x in stack.info))
    return Stack(stack.updates._replace(value=value, weight=stack.updates.weight[here]), info)
