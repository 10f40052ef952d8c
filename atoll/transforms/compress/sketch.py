"""Count sketches: tables that add up, from which the largest entries of a sum can be read."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from atoll import rng, tree
from atoll.core import Fraction, Spec, Total, Transform, Update
from atoll.rng import dp
from atoll.transforms.compress.compressor import counted
from atoll.transforms.compress.sparse import ShareSent, entries, largest
from atoll.transforms.requirements import needs_real, needs_sum
from atoll.tree import Tree


@dataclass(frozen=True)
class Sketch(Transform):
    """Clients send a count sketch of the whole update; the server keeps momentum and errors as sketches, too.

    FetchSGD (Rothchild et al., 2020): of the accumulated sketch the largest `share` of entries is applied, and taken
    out of it. No client keeps anything, so clients may come once and never again.
    """

    keyed: ClassVar[bool] = False

    columns: Annotated[int, Field(ge=1, le=2**28)]
    rows: Annotated[int, Field(ge=1, le=99)] = 5
    share: ShareSent = 0.01
    momentum: Fraction = 0.9

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        needs_real(spec, "sketch")
        needs_sum(spec, "sketch")
        bits = 32.0 if spec.size is None else 32.0 * self.rows * self.columns / spec.size
        why = "a sketch can be longer than the update it is of" if spec.l2 is not None else spec.unbounded_because
        return self, replace(spec, l2=None, l1=None, bits=bits, domain="sketch", unbiased=False, unbounded_because=why)

    def init(self, like: Tree) -> tuple[Tree, Tree]:
        table = torch.zeros(self.rows, self.columns, device=tree.device(like))
        return {"momentum": table, "error": table.clone(), "like": tree.zeros_like(like)}, {}

    def client_view(self, state: Tree) -> Tree:
        return {}

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        return update._replace(value={"sketch": self.table(_flat(update.value))}), own

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        total = counted(total)
        momentum = state["momentum"] * self.momentum + total.mean()["sketch"]
        error = state["error"] + momentum
        size = tree.count(state["like"])
        estimate = self.read(error, size)
        places = largest(estimate, entries(self.share, size))
        step = torch.zeros_like(estimate).scatter(0, places, estimate.gather(0, places))
        taken = self.table(step) != 0  # both forget what was applied: its buckets start again
        kept = {"momentum": momentum.masked_fill(taken, 0.0), "error": error.masked_fill(taken, 0.0)}
        value = dp.unflatten(step * total.weight, state["like"])
        return replace(total, value=value), {**kept, "like": state["like"]}

    def table(self, flat: Tensor) -> Tensor:
        """The sketch of a vector: (rows, columns)."""
        blocks = torch.nn.functional.pad(flat, (0, self._padded(len(flat)) - len(flat))).reshape(-1, self.columns)
        rows = []
        for row in range(self.rows):
            signs, offsets = self._hash(row, len(blocks), flat.device)
            rows.append((blocks * signs).gather(1, self._turned(-offsets)).sum(0))
        return torch.stack(rows)

    def read(self, table: Tensor, size: int) -> Tensor:
        """The vector that a sketch is of, about: the median over rows."""
        blocks = self._padded(size) // self.columns
        reads = []
        for row in range(self.rows):
            signs, offsets = self._hash(row, blocks, table.device)
            reads.append(table[row].expand(blocks, -1).gather(1, self._turned(offsets)) * signs)
        ordered = torch.stack(reads).sort(0).values
        middle = (ordered[(self.rows - 1) // 2] + ordered[self.rows // 2]) / 2
        return middle.flatten()[:size]

    def _padded(self, size: int) -> int:
        return math.ceil(size / self.columns) * self.columns

    def _hash(self, row: int, blocks: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Signs, and by how much each block is turned: entry i of it goes to bucket i + offset."""
        key = rng.key("sketch", row)
        words = rng.quick_words(key, blocks * self.columns + blocks).to(device)
        signs = 1.0 - 2.0 * (words[blocks:] & 1).float().reshape(blocks, self.columns)
        offsets = ((words[:blocks].long() & 0x7FFFFFFF) % self.columns)[:, None]
        return signs, offsets

    def _turned(self, offsets: Tensor) -> Tensor:
        return (torch.arange(self.columns, device=offsets.device) + offsets) % self.columns


def _flat(value: Tree) -> Tensor:
    return torch.cat([x.flatten() for x in tree.leaves(value)])
