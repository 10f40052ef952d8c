"""Gradient tracking: nodes follow an estimate of the mean step, so that unlike clients agree on the optimum."""

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
from atoll.tree import Tree
from atoll.wire import wire_bytes

NAME = "tracking"


@dataclass(frozen=True)
class GradientTracking(OnGraph):
    """Nodes move by y, which tracks the mean of all nodes' steps (Di Lorenzo and Scutari, 2016; Nedić et al., 2017).

    y <- W y + delta - delta of the round before, x <- W (x + y). The mean of y is the mean of delta at all times, so it
    comes to rest where the steps of all nodes cancel out: with one step a round, at the optimum, at a constant rate.
    With several, where FedAvg of equal weights does. Two models travel on each edge. A node that does not train keeps
    its last step.
    """

    title: ClassVar[str] = "gradient_tracking"

    def start(self, models: Model) -> Tree:
        return {NAME: {name: tree.map(torch.zeros_like, models["params"]) for name in ("mixed", "last")}}

    def mix(self, ctx: Context, stepped: NodeStep, matrix: MixingMatrix, key: Tensor) -> MixResult:
        state, x = stepped.after, stepped.before["server"]["params"]
        memory, nodes = state[NAME], stepped.nodes
        moved = tree.sub(state["server"]["params"], x)
        delta = tree.map(lambda old, new: old.index_copy(0, nodes, new[nodes]), memory["last"], moved)
        tracked = tree.sub(tree.add(memory["mixed"], delta), memory["last"])
        buffers = state["server"]["buffers"]
        mixed = matrix.mix({"params": tree.add(x, tracked), "buffers": buffers, "tracked": tracked})
        server = {**state["server"], "params": mixed["params"], "buffers": mixed["buffers"]}
        after = {**state, "server": server, NAME: {"mixed": mixed["tracked"], "last": delta}}
        return MixResult(after, self.bytes_per_message(ctx, state))

    def bytes_per_message(self, ctx: Context, state: Tree) -> int:
        sent = {**model_of(state["server"]), "tracked": state[NAME]["mixed"]}
        return wire_bytes(tree.rows(sent, 0))
