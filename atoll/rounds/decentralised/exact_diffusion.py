"""D2 and exact diffusion: each node takes back what the last mixing did to its own step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Context, Model
from atoll.errors import ConfigError
from atoll.rounds.decentralised.decentralised import MixResult, NodeStep, OnGraph
from atoll.rounds.decentralised.mixing_matrix import MixingMatrix
from atoll.rounds.decentralised.mixing_weights import Promise
from atoll.tree import Tree

NAME = "diffusion"


@dataclass(frozen=True)
class ExactDiffusion(OnGraph):
    """D2 (Tang et al., 2018) and, with `lazy` weights (I + W) / 2, exact diffusion (Yuan et al., 2019).

    psi <- x + delta, x <- W (psi + x - psi of the round before). One model on each edge, as in gossip, and unlike
    clients do not pull it off the optimum: it comes to rest where the nodes' steps cancel out.
    """

    title: ClassVar[str] = "d2"
    promise: ClassVar[Promise] = "symmetric"
    takes_changes: ClassVar[bool] = False

    lazy: bool = True

    def start(self, models: Model) -> Tree:
        return {NAME: {"stepped": tree.map(torch.clone, models["params"])}}

    def mixed_by(self, matrix: MixingMatrix) -> MixingMatrix:
        return matrix.lazy if self.lazy else matrix

    def check_matrix(self, matrix: MixingMatrix) -> None:
        if not self.lazy and matrix.smallest_eigenvalue <= -1 / 3:
            raise ConfigError(
                f"round.lazy: d2 without it needs eigenvalues of W above -1/3, and the smallest is "
                f"{matrix.smallest_eigenvalue:.4g} here: it would diverge. Leave lazy = true."
            )

    def mix(self, ctx: Context, stepped: NodeStep, matrix: MixingMatrix, key: Tensor) -> MixResult:
        state, x = stepped.after, stepped.before["server"]["params"]
        now = state["server"]["params"]
        corrected = tree.sub(tree.add(now, x), state[NAME]["stepped"])
        mixed = self.mixed_by(matrix).mix({"params": corrected, "buffers": state["server"]["buffers"]})
        after = {**state, "server": {**state["server"], **mixed}, NAME: {"stepped": now}}
        return MixResult(after, self.bytes_per_message(ctx, state))
