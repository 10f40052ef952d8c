"""What becomes of a stack coordinate by coordinate: means of values in order, and of those next to the median.

A network of comparators does it on a host and, as a kernel, on a GPU (`network_kernels`; for many clients
`coordinate_kernels`), and `torch.sort` where there is neither. All are one function of the values, not of their
order.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from atoll import tree
from atoll.reducers.sorting_network import columns_of_block, sorted_rows
from atoll.tree import Tree

DEVICES = {"cuda"}  # where kernels can be launched
_FOUND = importlib.util.find_spec("triton") is not None
_ROWS = 1024  # clients up to which a network is quicker than a sort
_KERNEL_ROWS = 128  # that one warp holds in registers
_NETWORK = 64  # of which a thread sorts those of one column
_COLUMNS = 128  # of a program with such threads
_WIDTH = 32  # columns of a warp: one for each thread
_SMALL = 1 << 15  # columns of a tensor that is joined with others

Columnwise = Callable[[Tensor], Tensor]  # (C, B) to (B,)


def reduced(value: Tree, f: Columnwise) -> Tree:
    """Leaves (C, ...) to leaves (...): `f` of all columns, small tensors together."""
    leaves = [_matrix(x) for x in tree.leaves(value)]
    small = [i for i, x in enumerate(leaves) if x.shape[1] < _SMALL]
    out: list[Tensor | None] = [None if i in small else f(x) for i, x in enumerate(leaves)]
    if small:
        joined = f(torch.cat([leaves[i] for i in small], 1) if len(small) > 1 else leaves[small[0]])
        for i, part in zip(small, torch.split(joined, [leaves[i].shape[1] for i in small]), strict=True):
            out[i] = part
    parts = iter(out)
    return tree.map(lambda x: _like(_next(parts), x), value)  # type: ignore[no-any-return]


def mean_of_ranks(x: Tensor, first: int, last: int) -> Tensor:
    """(C, d) to (d,): the mean of the values of rank first..last of every column, counted from 0."""
    if not x.numel():
        return x.new_zeros(x.shape[1])
    if _in_kernel(x):
        return (
            _by_network(x, first, last) if len(x) <= _NETWORK else _launched(x, _kernels().mean_of_ranks, first, last)
        )
    if first == 0 and last == len(x) - 1:
        return x.mean(0)
    return by_blocks(x, lambda block: _mean(_ordered(block, first, last)[first : last + 1]))


def median(x: Tensor) -> Tensor:
    """(C, d) to (d,): the middle value; the mean of the two middle ones for an even number."""
    return mean_of_ranks(x, (len(x) - 1) // 2, len(x) // 2)


def mean_around_median(x: Tensor, count: int) -> Tensor:
    """(C, d) to (d,): the mean of the `count` values next to the median; those equally far share what is left."""
    if not x.numel():
        return x.new_zeros(x.shape[1])
    if _in_kernel(x):
        return _launched(x, _kernels().mean_around_median, count, 0)
    return by_blocks(x, lambda block: _around(torch.stack(_ordered(block, 0, len(block) - 1)), count))


def _around(ordered: Tensor, count: int) -> Tensor:
    n = len(ordered)
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    away = (ordered - middle).abs()
    furthest = torch.maximum(away[: n - count + 1], away[count - 1 :]).amin(0)  # of the best of all windows
    inside, tied = away < furthest, away == furthest
    spare = count - inside.sum(0)
    shared = (ordered * tied).sum(0) / tied.sum(0)
    return ((ordered * inside).sum(0) + spare * shared) / count


def _mean(rows: list[Tensor]) -> Tensor:
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total / len(rows)


def _ordered(block: Tensor, first: int, last: int) -> list[Tensor]:
    if len(block) > _ROWS or block.device.type != "cpu":
        return list(block.sort(0).values)
    return sorted_rows(block, first, last)


def by_blocks(x: Tensor, f: Columnwise) -> Tensor:
    """`f` of all columns; on a host of so many at a time that they stay in its caches."""
    if x.device.type != "cpu":
        return f(x)
    out, width = x.new_empty(x.shape[1]), columns_of_block(len(x))
    for at in range(0, x.shape[1], width):
        out[at : at + width] = f(x[:, at : at + width])
    return out


def _in_kernel(x: Tensor) -> bool:
    fits = x.dtype == torch.float32 and 1 < len(x) <= _KERNEL_ROWS
    return _FOUND and x.device.type in DEVICES and fits and x.stride(1) == 1


def _kernels() -> Any:
    from atoll.reducers import coordinate_kernels

    return coordinate_kernels


def _by_network(x: Tensor, first: int, last: int) -> Tensor:
    from atoll.reducers import network_kernels

    (n, d), out = x.shape, torch.empty(x.shape[1], dtype=x.dtype, device=x.device)
    network_kernels.mean_of_ranks(n, first, last)[(-(-d // _COLUMNS),)](x, out, d, x.stride(0), BLOCK=_COLUMNS)
    return out


def _launched(x: Tensor, kernel: Any, a: int, b: int) -> Tensor:
    n, d = x.shape
    rows = max(2, 1 << (n - 1).bit_length())
    out = torch.empty(d, dtype=x.dtype, device=x.device)
    kernel[(-(-d // _WIDTH),)](x, out, n, d, x.stride(0), a, b, ROWS=rows, BLOCK=_WIDTH, num_warps=1)
    return out


def _matrix(x: Tensor) -> Tensor:
    """One row for each client; whole numbers and half precision as float32."""
    flat = x.reshape(len(x), int(torch.Size(x.shape[1:]).numel()))
    return flat if x.dtype in (torch.float32, torch.float64) else flat.float()


def _like(part: Tensor, x: Tensor) -> Tensor:
    return part.reshape(x.shape[1:]).to(x.dtype if x.is_floating_point() else torch.float32)


def _next(parts: Any) -> Tensor:
    part: Tensor = next(parts)
    return part
