"""Examples that the server and all clients have."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll import tree
from atoll.tree import Tree


@dataclass(frozen=True, eq=False)
class PublicExamples:
    """Inputs that nobody keeps to himself, as a model gets them. Their labels, if there are any, are not looked at."""

    inputs: Tree  # {"x"}: (P, ...)

    def __len__(self) -> int:
        return len(tree.leaves(self.inputs)[0])

    def batch(self, index: Tensor | None = None) -> Tree:
        """Some of them as a batch, or all."""
        inputs = self.inputs if index is None else tree.rows(self.inputs, index)
        first = tree.leaves(inputs)[0]
        key = torch.zeros(2, dtype=torch.int64, device=first.device)
        return {**inputs, "mask": torch.ones(len(first), device=first.device), "key": key}
