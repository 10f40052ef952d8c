"""Averaging over directed graphs: numbers and weights are pushed on, and their quotient is the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from atoll import tree
from atoll.algorithms import model_of
from atoll.core import Context, Model
from atoll.rounds.decentralised.decentralised import MixResult, NodeStep, OnGraph
from atoll.rounds.decentralised.mixing_matrix import MixingMatrix
from atoll.rounds.decentralised.mixing_weights import Promise, Stochastic, WeightRule
from atoll.tree import Tree
from atoll.wire import wire_bytes

NAME = "push_sum"


@dataclass(frozen=True)
class PushSum(OnGraph):
    """For directed graphs: stochastic gradient push (Assran et al., 2019; push-sum: Kempe et al., 2003).

    A node trains from z = x / w. x <- P (x + delta), w <- P w, with columns of P that sum to 1: a node shares out what
    it has, and needs to know only to how many it sends. The sum of x is kept, so z reaches the mean.
    """

    title: ClassVar[str] = "push_sum"
    promise: ClassVar[Promise] = "columns"
    stochastic: ClassVar[Stochastic] = "columns"

    weights: WeightRule = "uniform"

    def start(self, models: Model) -> Tree:
        first = tree.leaves(models)[0]
        return {NAME: {"weight": torch.ones(len(first), device=first.device)}}

    def mix(self, ctx: Context, stepped: NodeStep, matrix: MixingMatrix, key: Tensor) -> MixResult:
        state, own = stepped.after, model_of(stepped.before["server"])
        weight, delta = state[NAME]["weight"], tree.sub(model_of(state["server"]), own)
        mixed = matrix.mix({"x": tree.add(_times(own, weight), delta), "weight": weight})
        new = tree.map(tree.cast_like, _times(mixed["x"], 1.0 / mixed["weight"]), own)
        after = {**state, "server": {**state["server"], **new}, NAME: {"weight": mixed["weight"]}}
        return MixResult(after, self.bytes_per_message(ctx, state))

    def bytes_per_message(self, ctx: Context, state: Tree) -> int:
        sent = {**model_of(state["server"]), "weight": state[NAME]["weight"]}
        return wire_bytes(tree.rows(sent, 0))

    def model(self, state: Tree) -> Model:
        """The mean of all x, which mixing keeps."""
        weight, own = state[NAME]["weight"], model_of(state["server"])
        return tree.map(lambda x, like: tree.cast_like(x.mean(0), like), _times(own, weight), own)  # type: ignore[no-any-return]


def _times(rows: Tree, weight: Tensor) -> Tree:
    """Every node's tree times its number: of whole numbers, no whole ones."""

    def product(x: Tensor) -> Tensor:
        real = x if x.is_floating_point() else x.double()
        return real * weight.reshape(-1, *[1] * (x.dim() - 1)).to(real.dtype)

    return tree.map(product, rows)  # type: ignore[no-any-return]
