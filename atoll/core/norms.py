"""How long an update is, right to a few parts in a million."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from atoll import tree
from atoll.tree import Tree

Norm = Literal["l2", "l1"]
_BLOCK = 1024  # numbers; eight at a time, that is 128 additions, each wrong by 6e-8 at most


def l1_norm(value: Tree) -> Tensor:
    """The entries of the tree without their signs, added up in float64."""
    sums = [x.double().abs().sum() for x in tree.leaves(value)]
    return torch.stack(sums).sum().float() if sums else torch.zeros(())


def l2_norm(value: Tree) -> Tensor:
    """The L2 norm, from blocks whose float32 sums are right to 2e-6; nothing as large as the tree is written.

    >>> float(l2_norm({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])}))
    5.0
    """
    norms = [norm for x in tree.leaves(value) for norm in _block_norms(x.float().reshape(-1))]
    if len(norms) == 1 and norms[0].numel() == 1:
        return norms[0].reshape(())
    return torch.linalg.vector_norm(torch.cat(norms), dtype=torch.float64).float() if norms else torch.zeros(())


def _block_norms(x: Tensor) -> list[Tensor]:
    rest = x.numel() % _BLOCK
    whole, tail = x[: x.numel() - rest].reshape(-1, _BLOCK), x[x.numel() - rest :].reshape(1, -1)
    return [torch.linalg.vector_norm(part, dim=1) for part in (whole, tail) if part.numel()]


def factored_norm(value: Tree, by: Tree, norm: Norm) -> Tensor:
    """The norm of a tree whose every tensor is to be multiplied by a number; {}: as it is. No product is written."""
    length = l1_norm if norm == "l1" else l2_norm
    groups: dict[
        int, tuple[Tensor, Tree]
    ] = {}  # of tensors with one and the same factor: a clip took their length, too
    for i, (x, factor) in enumerate(zip(tree.leaves(value), tree.leaves(by), strict=True) if by else ()):
        groups.setdefault(id(factor), (factor, {}))[1][str(i)] = x
    lengths = [length(group) * factor.abs() for factor, group in groups.values()]
    if len(lengths) < 2:
        return lengths[0] if lengths else length(value)
    together = torch.stack(lengths).double()
    return (together.sum() if norm == "l1" else torch.linalg.vector_norm(together)).float()  # type: ignore[no-any-return]
