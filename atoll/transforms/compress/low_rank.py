"""Matrices as products of two thin ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from atoll import rng, tree
from atoll.core import Spec
from atoll.errors import SpecError
from atoll.transforms.compress import fused
from atoll.transforms.compress.compressor import Compressor, Packed, Split, less
from atoll.transforms.compress.largest import Feedback
from atoll.tree import Tree


@dataclass(frozen=True)
class LowRank(Compressor):
    """One step of power iteration from where the client's last one ended (PowerSGD, Vogels et al., 2019).

    A tensor is a matrix with as many rows as its first axis is long. Those that two factors of this rank would not make
    smaller, and vectors, are sent whole. OARF adds half of what was held back (feedback 0.5).
    """

    linear: ClassVar[bool] = False

    rank: Annotated[int, Field(ge=1, le=4096)]
    feedback: Feedback = 1.0

    def after(self, spec: Spec) -> Spec:
        return replace(spec, l1=None)  # a projection: no longer than what came in

    def own(self, like: Tree) -> Tree:
        matrices = [x for x in tree.leaves(like) if x.dim() > 1]
        if matrices and not any(map(self._takes, matrices)):
            largest = max(map(_largest_rank, matrices))
            instead = f"Use a rank of {largest} or less, or" if largest else "Use"
            raise SpecError(
                f"low_rank: rank {self.rank} makes no tensor of this model smaller. {instead} another compressor: "
                "vectors are sent whole."
            )
        return {path: _start(x, self.rank, i) for i, (path, x) in enumerate(tree.paths(like)) if self._takes(x)}

    def pack(self, value: Tree, own: Tree, key: Tensor) -> tuple[Packed, Tree]:
        kept = dict(own)

        def factors(path: str, x: Tensor) -> Any:
            if path not in own:
                return x
            left, right = power_step(_matrix(x), own[path])
            kept[path] = _next_start(right, own[path])
            return {"left": left, "right": right}

        return Packed(_map_paths(factors, value), {}), kept

    def split(self, value: Tree, memory: Tree, part: float, arrives: Tensor, own: Tree) -> Split | None:
        if not all(fused.thin(_matrix(x), self.rank) for path, x in tree.paths(value) if path in own):
            return None
        kept, before = dict(own), dict(tree.paths(memory))
        numbers, sent, held = dict[str, Any](), dict[str, Tensor](), dict[str, Tensor]()
        for path, x in tree.paths(value):
            if path not in own:  # sent whole
                numbers[path] = sent[path] = x + (before[path] * part).to(x.dtype)
                held[path] = less(sent[path], sent[path], arrives)
                continue
            left, right, full = summed_power_step(_matrix(x), _matrix(before[path]), part, own[path])
            kept[path], numbers[path] = _next_start(right, own[path]), {"left": left, "right": right}
            halves = fused.thin_outer_and_rest(left, right, full, arrives)
            sent[path], held[path] = (half.reshape(x.shape) for half in halves)

        def like(parts: dict[str, Any]) -> Tree:
            return _map_paths(lambda path, _: parts[path], value)

        return Split(Packed(like(numbers), {}), like(sent), like(held), kept)

    def unpack(self, packed: Packed, like: Tree, key: Tensor) -> Tree:
        def product(numbers: Any, x: Any) -> Any:
            if isinstance(x, dict):
                return {name: product(numbers.get(name, {}), part) for name, part in x.items()}
            if not self._takes(x):
                return numbers
            return outer(numbers["left"], numbers["right"]).reshape(x.shape)

        return product(packed.numbers, like)  # type: ignore[no-any-return]

    def encodings(self, like: Tree) -> Tree:
        return {}

    def _takes(self, like: Tensor) -> bool:
        if like.dim() < 2 or not like.is_floating_point():
            return False
        return self.rank <= _largest_rank(like)


def power_step(matrix: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal columns that span the matrix times `start`, and what the matrix makes of them, transposed."""
    if fused.thin(matrix, start.shape[1]):
        left = fused.orthonormal(fused.thin_product(matrix, start, False))
        return left, fused.thin_product(matrix, left, True)
    left = orthonormal(matrix @ start)
    return left, matrix.T @ left


def summed_power_step(matrix: Tensor, memory: Tensor, part: float, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`power_step` of matrix + part * memory by kernels, and that sum, which the first product writes in passing."""
    product, full = fused.thin_product_of_sum(matrix, memory, part, start)
    left = fused.orthonormal(product)
    return left, fused.thin_product(full, left, True), full


def outer(left: Tensor, right: Tensor) -> Tensor:
    """The matrix that two thin factors stand for."""
    return fused.thin_outer(left, right) if fused.thin(left, left.shape[1]) else left @ right.T


def orthonormal(matrix: Tensor) -> Tensor:
    """Its columns by Gram and Schmidt, twice each; a column that is in the span of those before it becomes zero."""
    columns: list[Tensor] = []
    for column in matrix.unbind(1):
        whole = column.norm()
        for _ in range(2):
            for before in columns:
                column = column - (before @ column) * before
        length = column.norm()
        columns.append(torch.where(length > 1e-6 * whole, column / length.clamp(min=1e-38), 0.0))
    return torch.stack(columns, 1)


def _largest_rank(like: Tensor) -> int:
    """The largest r with r (rows + columns) < rows columns: two factors are then smaller than the matrix."""
    rows, columns = like.shape[0], math.prod(like.shape[1:])
    return max(0, rows * columns - 1) // (rows + columns)


def _matrix(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], -1)


def _next_start(right: Tensor, start: Tensor) -> Tensor:
    """Where the next iteration starts: columns of zeros stay where they were, or they would never leave zero."""
    return torch.where(right.norm(dim=0) > 0, right, start)


def _start(x: Tensor, rank: int, i: int) -> Tensor:
    """Where a client's first iteration starts: at random, and the same for all."""
    return rng.normal(rng.key("low_rank", i), (math.prod(x.shape[1:]), rank)).to(x.device, x.dtype)


def _map_paths(f: Any, value: Tree, prefix: str = "") -> Tree:
    return {
        name: _map_paths(f, x, f"{prefix}{name}/") if isinstance(x, dict) else f(f"{prefix}{name}", x)
        for name, x in value.items()
    }
