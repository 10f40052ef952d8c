"""A stack as rows in the order of clients' ids, and what defences ask of it: lengths, distances, combinations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Stack
from atoll.reducers.gram import (
    cross,
    gram,
    lengths,
    products_around,
    squared_distances,
    squared_distances_from,
)
from atoll.tree import Tree


@dataclass(frozen=True, eq=False)
class Rows:
    """Numbers about a stack are float64 on the host, in the order of ids: of equals the lower id comes first."""

    value: Tree  # leaves (C, ...), as they came
    order: Tensor  # (C,) on the host: where the client of each place of that order stands
    ids: Tensor  # (C,) on the host, in order

    @classmethod
    def of(cls, stack: Stack) -> Rows:
        ids = stack.info.id.cpu()
        order = ids.argsort(stable=True)
        return cls(stack.updates.value, order, ids[order])

    def __len__(self) -> int:
        return len(self.order)

    @cached_property
    def gram(self) -> Tensor:
        """(C, C) inner products."""
        return self._pairs(self._products)

    @cached_property
    def distances(self) -> Tensor:
        """(C, C) squared distances."""
        return self._pairs(squared_distances(self.value, self._products))

    @cached_property
    def norms(self) -> Tensor:
        """(C,) lengths."""
        return lengths(self.value, len(self))[self.order]

    def products_with(self, one: Tree) -> Tensor:
        """(C,) inner products with one vector."""
        return cross(self.value, one, len(self))[self.order]

    def distances_from(self, one: Tree) -> tuple[Tensor, bool]:
        """(C,) squared distances from one vector, and whether it is near to some."""
        found, near = squared_distances_from(self.value, one, len(self))
        return found[self.order], near

    def products_around(self, one: Tree, near: bool) -> Tensor:
        """(C, C) inner products of differences to one vector."""
        if near:
            return self._pairs(products_around(self.value, one, len(self)))
        beside, own = self.products_with(one), tree.dot(one, one).cpu()
        return self.gram - beside[:, None] - beside[None, :] + own

    def combined(self, weights: Tensor) -> Tree:
        """The sum of w_k x_k; who weighs nothing is not touched."""
        by, device = self._placed(weights.double()), tree.device(self.value)
        used = by.nonzero().flatten()
        if len(used) < len(self) // 2:
            rows, by = used.to(device), by[used].to(device)
            return tree.map(lambda x: _sum(x[rows], by), self.value)  # type: ignore[no-any-return]
        by = by.to(device)  # once, not for every tensor
        return tree.map(lambda x: _sum(x, by), self.value)  # type: ignore[no-any-return]

    def mixed(self, matrix: Tensor) -> Tree:
        """(M, C) weights to a stack of M combinations, in the order of the matrix."""
        placed = torch.empty_like(matrix)
        placed[:, self.order] = matrix
        return tree.map(lambda x: _product(placed, x), self.value)  # type: ignore[no-any-return]

    def factors(self, numbers: Tensor) -> Tree:
        """For every tensor what its rows are to be multiplied by, as they came."""
        by = self._placed(numbers).to(tree.device(self.value), torch.float32)
        return tree.map(lambda _: by, self.value)  # type: ignore[no-any-return]

    def columns(self, chosen: Tensor) -> Tensor:
        """(C, B) in float64: some of all numbers of every update, counted through."""
        parts, start = [], 0
        for x in tree.leaves(self.value):
            size = int(torch.Size(x.shape[1:]).numel())
            here = chosen[(chosen >= start) & (chosen < start + size)] - start
            parts.append(x.reshape(len(x), size)[:, here.to(x.device)].double().cpu())
            start += size
        return torch.cat(parts, 1)[self.order]

    @cached_property
    def _products(self) -> Tensor:
        return gram(self.value, len(self))

    def _pairs(self, x: Tensor) -> Tensor:
        return x[self.order][:, self.order]

    def _placed(self, numbers: Tensor) -> Tensor:
        """From the order of ids back to where the clients stand."""
        placed = torch.empty_like(numbers)
        placed[self.order] = numbers
        return placed


def _real(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.float()


def _sum(x: Tensor, weights: Tensor) -> Tensor:
    return tree.weighted_sum(_real(x), weights) if len(x) else _real(x).new_zeros(x.shape[1:])


def _product(matrix: Tensor, x: Tensor) -> Tensor:
    rows = _real(x).reshape(len(x), int(torch.Size(x.shape[1:]).numel()))
    if x.device.type != "cpu":  # never in TF32
        return (matrix.to(x.device) @ rows.double()).to(rows.dtype).reshape(len(matrix), *x.shape[1:])
    return (matrix.to(rows.dtype) @ rows).reshape(len(matrix), *x.shape[1:])
