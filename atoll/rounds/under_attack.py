"""A round in which some clients may mean harm: it says which round it is, and which rows are read in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atoll.core import Attack, Context, Play
from atoll.rounds.around import RoundAround
from atoll.tree import Tree


@dataclass(frozen=True, eq=False)
class UnderAttack(RoundAround):
    """A round around another. While an attack on data is on, clients read the second table of rows, in which only
    attackers have others; where updates are crafted, the reducer is told the number of the round.
    """

    attack: Attack
    poisoned: bool  # is there a second table?
    crafted: bool  # is the reducer an attacked one?

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        if self.poisoned and self.attack.active(ctx.number):
            ctx = replace(ctx, row_table=1)
        if self.crafted:
            state = {**state, "reducer": {**state["reducer"], "round": torch.tensor(ctx.number)}}
        return (yield from self.inner.run(ctx, state, key))
