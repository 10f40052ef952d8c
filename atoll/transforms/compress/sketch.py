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
from atoll.errors import SpecError
from atoll.rng import dp
from atoll.transforms.compress import fused
from atoll.transforms.compress.compressor import counted
from atoll.transforms.compress.largest import ShareSent, entries, largest
from atoll.transforms.requirements import needs_real, needs_sum
from atoll.tree import Tree

_FEW = 9  # rows that sorting them as tensors is slower for


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
        if spec.size == 0:
            raise SpecError("sketch: clients send nothing that could be sketched. Leave it out.")
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
        value = tree.map(
            lambda x, like: x.to(like.dtype), dp.unflatten(step * total.weight, state["like"]), state["like"]
        )
        return replace(total, value=value), {**kept, "like": state["like"]}

    def table(self, flat: Tensor) -> Tensor:
        """The sketch of a vector: (rows, columns)."""
        padded = self._padded(len(flat))
        if fused.usable(flat, 1 << 31):
            offsets = self._offsets(self._words(padded // self.columns, 0, flat.device))
            by_kernel: Tensor = fused.sketch_table(flat, offsets, self.columns, _key())
            return by_kernel
        blocks = torch.nn.functional.pad(flat, (0, padded - len(flat))).reshape(-1, self.columns)
        signs, offsets = self._hash(len(blocks), flat.device)
        rows = [(blocks * s).gather(1, self._turned(-o[:, None])).sum(0) for s, o in zip(signs, offsets, strict=True)]
        return torch.stack(rows)

    def read(self, table: Tensor, size: int) -> Tensor:
        """The vector that a sketch is of, about: the median over rows."""
        blocks = self._padded(size) // self.columns
        if fused.usable(table, 1 << 31):
            offsets = self._offsets(self._words(blocks, 0, table.device))
            return _median(list(fused.sketch_read(table, offsets, size, _key())))
        signs, offsets = self._hash(blocks, table.device)
        reads = [
            table[row].expand(blocks, -1).gather(1, self._turned(offsets[row][:, None])) * signs[row]
            for row in range(self.rows)
        ]
        return _median(reads).flatten()[:size]

    def _padded(self, size: int) -> int:
        return math.ceil(size / self.columns) * self.columns

    def _hash(self, blocks: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Signs (rows, blocks, columns), and by how much each block is turned: entry i goes to bucket i + offset."""
        words = self._words(blocks, blocks * self.columns, device)
        signs = 1.0 - 2.0 * (words[:, blocks:] & 1).float().reshape(self.rows, blocks, self.columns)
        return signs, self._offsets(words[:, :blocks])

    def _words(self, blocks: int, more: int, device: torch.device) -> Tensor:
        rows = torch.arange(self.rows, dtype=torch.int32, device=device)
        return rng.quick_bits(_key(), rows, blocks + more)

    def _offsets(self, words: Tensor) -> Tensor:
        return (words.long() & 0x7FFFFFFF) % self.columns

    def _turned(self, offsets: Tensor) -> Tensor:
        return (torch.arange(self.columns, device=offsets.device) + offsets) % self.columns


def _key() -> tuple[int, int]:
    """The same hashes for everybody; as numbers, since a tensor would have to be copied to a device."""
    a, b = rng.key("sketch").tolist()
    return a, b


def _median(rows: list[Tensor]) -> Tensor:
    """Entry by entry. Few rows are sorted against each other: neighbours, in turns."""
    if len(rows) > _FEW:
        rows = list(torch.stack(rows).sort(0).values)
    else:
        for i in (i for turn in range(len(rows)) for i in range(turn % 2, len(rows) - 1, 2)):
            rows[i], rows[i + 1] = torch.minimum(rows[i], rows[i + 1]), torch.maximum(rows[i], rows[i + 1])
    return (rows[(len(rows) - 1) // 2] + rows[len(rows) // 2]) / 2


def _flat(value: Tree) -> Tensor:
    return torch.cat([x.flatten().float() for x in tree.leaves(value)])
