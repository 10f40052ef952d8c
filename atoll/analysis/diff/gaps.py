"""How far two tensors are apart, and whether that is the order of float sums or something real."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll import tree
from atoll.tree import Tree

EPSILON = 2.0**-23  # of float32: the gap between 1 and the next number
COARSE = {"tf32": 2.0**-10, "bfloat16": 2.0**-7}  # of arithmetic with fewer digits, on a GPU


@dataclass(frozen=True)
class TensorGap:
    """One tensor in two runs."""

    tensor: str
    largest: float | None  # of |a - b|; None where shapes or kinds differ, or one of them is missing
    relative: float | None  # the largest, over the largest |a| or |b|
    noise: bool  # fewer than half of the digits differ: relative at most sqrt(epsilon)

    def __str__(self) -> str:
        if self.largest is None:
            return f"{self.tensor}: is not in both, or has another shape"
        kind = "float noise" if self.noise else "a real difference"
        return f"{self.tensor}: at most {self.largest:.3g} apart, {self.relative:.2g} of its size ({kind})"


def gaps(a: Tree, b: Tree, epsilon: float = EPSILON) -> list[TensorGap]:
    """Every tensor that is not the same bit for bit, in the order of the first tree.

    >>> gaps({"w": torch.tensor([1.0, 2.0]), "b": torch.zeros(1)}, {"w": torch.tensor([1.0, 3.0]), "b": torch.zeros(1)})
    [TensorGap(tensor='w', largest=1.0, relative=0.3333333333333333, noise=False)]
    """
    x, y = dict(tree.paths(a)), dict(tree.paths(b))
    differing = []
    for path in dict.fromkeys([*x, *y]):
        if path not in x or path not in y or not alike(x[path], y[path]):
            differing.append(TensorGap(path, None, None, False))
        elif not same(x[path], y[path]):
            differing.append(_gap(path, x[path], y[path], epsilon))
    return differing


def alike(a: Tensor, b: Tensor) -> bool:
    """The same shape and kind of numbers?"""
    return a.shape == b.shape and a.dtype == b.dtype


def same(a: Tensor, b: Tensor) -> bool:
    return alike(a, b) and torch.equal(_bits(a), _bits(b))


def _bits(x: Tensor) -> Tensor:
    return x.detach().cpu().contiguous().flatten().view(torch.uint8)


def _gap(path: str, a: Tensor, b: Tensor, epsilon: float) -> TensorGap:
    x, y = a.detach().cpu().double(), b.detach().cpu().double()
    size = float(torch.maximum(x.abs(), y.abs()).nan_to_num(0.0).max())
    apart = (x - y).abs()
    apart = torch.where((x == y) | (x.isnan() & y.isnan()), 0.0, apart)  # inf - inf is no difference
    largest = float(apart.nan_to_num(float("inf")).max())
    relative = largest / size if size else 0.0
    return TensorGap(path, largest, relative, a.is_floating_point() and relative <= epsilon**0.5)
