"""Trees as few large buffers: a message costs more than its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from atoll import tree
from atoll.tree import Tree

PIECE = 1 << 26  # bytes of a buffer, unless one tensor alone is larger


def summed(values: Tree, reduce: Callable[[Tensor], None]) -> Tree:
    """The tree after `reduce` has changed it, a buffer at a time."""
    leaves = tree.leaves(values)
    new: list[Tensor] = list(leaves)
    for group in _groups(leaves, lambda x: x.numel() * x.element_size(), lambda x: (x.dtype, x.device)):
        buffer = torch.cat([leaves[i].reshape(-1) for i in group])
        reduce(buffer)
        sizes = [leaves[i].numel() for i in group]
        for i, part in zip(group, torch.split(buffer, sizes), strict=True):  # type: ignore[no-untyped-call]
            new[i] = part.reshape(leaves[i].shape)
    return _like(values, new)


def joined(rows: Tree, counts: list[int], gather: Callable[[Tensor], Tensor]) -> Tree:
    """The rows of all ranks, in the order of ranks. `gather` turns (n, bytes) into (ranks, n, bytes).

    Here `rows` has counts[rank] rows; every rank pads to the most, since the buffers of a gather are alike.
    """
    leaves, most, total = tree.leaves(rows), max(counts), sum(counts)
    new: list[Tensor] = [x.new_zeros((total, *x.shape[1:])) for x in leaves]
    if not total:
        return _like(rows, new)
    for group in _groups(leaves, lambda x: len(counts) * most * _row_bytes(x), lambda x: x.device):
        wide = torch.cat([_bytes(leaves[i]) for i in group], 1)
        gathered = gather(torch.nn.functional.pad(wide, (0, 0, 0, most - len(wide))))
        gathered = torch.cat([part[:n] for part, n in zip(gathered, counts, strict=True)])
        sizes = [_row_bytes(leaves[i]) for i in group]
        for i, part in zip(group, torch.split(gathered, sizes, 1), strict=True):  # type: ignore[no-untyped-call]
            own = part.clone(memory_format=torch.contiguous_format)  # at an offset that any type can begin at
            new[i] = own.view(leaves[i].dtype).reshape(new[i].shape)
    return _like(rows, new)


def moved(values: Tree, move: Callable[[Tensor], None]) -> Tree:
    """The tree after `move` has sent or filled its bytes, a buffer at a time."""
    leaves = tree.leaves(values)
    new: list[Tensor] = list(leaves)
    for group in _groups(leaves, lambda x: x.numel() * x.element_size(), lambda x: x.device):
        buffer = torch.cat([_bytes(leaves[i][None]).reshape(-1) for i in group])
        move(buffer)
        sizes = [leaves[i].numel() * leaves[i].element_size() for i in group]
        for i, part in zip(group, torch.split(buffer, sizes), strict=True):  # type: ignore[no-untyped-call]
            new[i] = part.clone().view(leaves[i].dtype).reshape(leaves[i].shape)
    return _like(values, new)


def layout(values: Tree) -> Any:
    """Shapes and types, without the numbers: what a rank must know to take part with zeros."""
    return tree.map(lambda x: (tuple(x.shape), x.dtype), values)  # type: ignore[arg-type, return-value]


def zeros(like: Any, device: torch.device | str = "cpu", rows: int | None = None) -> Any:
    """Zeros in that layout; with so many rows instead of those it had."""
    if isinstance(like, dict):
        return {k: zeros(v, device, rows) for k, v in like.items()}
    shape, dtype = like
    return torch.zeros(shape if rows is None else (rows, *shape[1:]), dtype=dtype, device=device)


def _groups(
    leaves: list[Tensor], size: Callable[[Tensor], int], kind: Callable[[Tensor], object]
) -> Iterator[list[int]]:
    """Positions of leaves that go together: of one kind, up to a piece."""
    waiting: dict[object, tuple[list[int], int]] = {}
    for i, x in enumerate(leaves):
        if not x.numel() and not size(x):
            continue
        group, held = waiting.pop(kind(x), ([], 0))
        if group and held + size(x) > PIECE:
            yield group
            group, held = [], 0
        waiting[kind(x)] = ([*group, i], held + size(x))
    yield from (group for group, _ in waiting.values())


def _row_bytes(x: Tensor) -> int:
    return x.element_size() * x.shape[1:].numel()


def _bytes(x: Tensor) -> Tensor:
    """(rows, bytes) of (rows, ...)."""
    if not x.numel():
        return torch.zeros((len(x), _row_bytes(x)), dtype=torch.uint8, device=x.device)
    return x.contiguous().reshape(len(x), -1).view(torch.uint8)


def _like(values: Tree, leaves: list[Tensor]) -> Tree:
    flat = iter(leaves)
    return tree.map(lambda _: next(flat), values)  # type: ignore[no-any-return]
