"""From the compact columns of a file format to what a model takes; picklable, safe under vmap."""

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll.tree import Tree


@dataclass(frozen=True)
class Sparse:
    """Rows of `width` numbers, of which only those that are not zero are held.

    x (B, K) are the values, `slots` (B, K) their places, counted from 1; 0 is no place at all.
    """

    width: int

    def __call__(self, batch: Tree) -> Tree:
        rest = {k: v for k, v in batch.items() if k != "slots"}
        return {**rest, "x": _place(batch["slots"], batch["x"], self.width)}


@dataclass(frozen=True)
class OneHot:
    """Numbers x (B, F) and behind them `width` places, of which those in `slots` (B, K) are 1.

    Places are counted from 1; 0 is none: a category that the training rows do not have, or a missing one.
    """

    width: int

    def __call__(self, batch: Tree) -> Tree:
        rest = {k: v for k, v in batch.items() if k != "slots"}
        slots = batch["slots"]
        ones = torch.ones(slots.shape, device=slots.device)
        return {**rest, "x": torch.cat([batch["x"], _place(slots, ones, self.width)], -1)}


def _place(slots: Tensor, values: Tensor, width: int) -> Tensor:
    empty = torch.zeros((*slots.shape[:-1], width + 1), device=slots.device)
    return torch.scatter(empty, -1, slots.long(), values)[..., 1:]  # place 0 takes the padding, and goes
