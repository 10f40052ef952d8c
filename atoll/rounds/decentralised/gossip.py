"""Decentralised averaging: train, then average with the neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from atoll.algorithms import model_of
from atoll.core import Context
from atoll.rounds.decentralised.decentralised import MixResult, NodeStep, OnGraph
from atoll.rounds.decentralised.mixing_matrix import MixingMatrix


@dataclass(frozen=True)
class Gossip(OnGraph):
    """No server: nodes train, then average with their neighbours in a graph: D-PSGD (Lian et al., 2017).

    x <- W (x + delta). With unlike clients and a constant rate it ends beside the optimum: gradient_tracking and d2 do
    not.
    """

    title: ClassVar[str] = "gossip"

    def mix(self, ctx: Context, stepped: NodeStep, matrix: MixingMatrix, key: Tensor) -> MixResult:
        state = stepped.after
        mixed = matrix.mix(model_of(state["server"]))
        return MixResult({**state, "server": {**state["server"], **mixed}}, self.bytes_per_message(ctx, state))
