"""Inner products and distances between the updates of a stack: one pass over all numbers, (C, C) in float64.

On a host products are float32 in blocks whose sums are float64; where two updates are so near to each other that
their difference is lost in that, it is taken again from the differences themselves. On a GPU a kernel does the same,
each float32 as parts of TF32; without Triton, and for many clients, products there are of float64.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from atoll import tree
from atoll.tree import Tree

_BLOCK = 1 << 14  # columns whose products are summed in float32
_TILE = 16  # rows
_SIDE = 1 << 12  # columns of the products that are made side by side
_PIECE = 1 << 24  # numbers that are turned into float64 at a time
DEVICES = {"cuda"}  # where a kernel can be launched
_FOUND = importlib.util.find_spec("triton") is not None
_KERNEL_ROWS = 128  # clients whose products one program holds
_COLUMNS, _STEPS = 64, 64  # that a program multiplies at a time, and how often
_NARROW = 1 << 17  # columns of tensors that go together: a launch takes longer than their products
_NEAR = 0.05  # of |x|^2 + |y|^2: a squared distance below loses too many digits


def matrices(value: Tree) -> list[Tensor]:
    """Every tensor with one row for each client, (C, d); a view where that can be."""
    return [x.reshape(len(x), int(torch.Size(x.shape[1:]).numel())) for x in tree.leaves(value)]


def gram(value: Tree, clients: int) -> Tensor:
    """The inner products of all pairs of updates."""
    total = torch.zeros(clients, clients, dtype=torch.float64)
    in_kernel, others = _parted(matrices(value))
    for x in others:
        total += _products(x)
    return total + _by_kernel(in_kernel) if in_kernel else total


def cross(value: Tree, one: Tree, clients: int) -> Tensor:
    """The inner product of every update with one vector, (C,)."""
    total = torch.zeros(clients, dtype=torch.float64)
    for x, y in zip(matrices(value), tree.leaves(one), strict=True):
        y = y.flatten()
        width = block_width(x)
        for at in range(0, x.shape[1], width):
            part = slice(at, at + width)
            total += _finite(lambda u, v: torch.mv(u, v), x[:, part], y[part])
    return total


def block_width(x: Tensor) -> int:
    """Columns to look at together: on a GPU all, since every look at a result waits for it."""
    return _BLOCK if x.device.type == "cpu" else max(1, x.shape[1])


def lengths(value: Tree, clients: int) -> Tensor:
    """The length of every update, (C,)."""
    total = torch.zeros(clients, dtype=torch.float64)
    for x in matrices(value):
        total += _finite(lambda u: torch.linalg.vector_norm(u, dim=1), x) ** 2
    return total.sqrt()


def _finite(f: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """In float32, on the host; where squares are too large for that, in float64: liars may send any numbers."""
    found = f(*(x if x.is_floating_point() else x.float() for x in tensors)).double().cpu()
    return found if bool(found.isfinite().all()) else f(*(x.double() for x in tensors)).cpu()


def squared_distances(value: Tree, products: Tensor) -> Tensor:
    """|x_i - x_j|^2 of all pairs, from their inner products."""
    squares = products.diagonal()
    sums = squares[:, None] + squares[None, :]
    found = (sums - 2 * products).clamp(min=0).fill_diagonal_(0.0)
    near = found < _NEAR * sums
    near.fill_diagonal_(False)
    for members in _groups(near):
        again = torch.zeros(len(members), len(members), dtype=torch.float64)
        for x in matrices(value):
            again += _centred_products(x, members)
        own = again.diagonal()
        exact = (own[:, None] + own[None, :] - 2 * again).clamp(min=0)
        here = members[:, None], members[None, :]
        found[here] = torch.where(near[here], exact, found[here])
    return (found + found.T) / 2


def squared_distances_from(value: Tree, one: Tree, clients: int) -> tuple[Tensor, bool]:
    """|x_i - v|^2 of every update and one vector, (C,); and whether some were so near that differences were taken."""
    own = tree.dot(one, one).cpu().double()
    sums = lengths(value, clients) ** 2 + own
    found = (sums - 2 * cross(value, one, clients)).clamp(min=0)
    near = bool((found < _NEAR * sums).any())
    return (products_around(value, one, clients).diagonal() if near else found), near


def products_around(value: Tree, one: Tree, clients: int) -> Tensor:
    """(x_i - v) (x_j - v) of all pairs, from their differences to one vector, in float64."""
    total = torch.zeros(clients, clients, dtype=torch.float64)
    for x, y in zip(matrices(value), tree.leaves(one), strict=True):
        y = y.flatten()
        for at in range(0, x.shape[1], _piece(x)):
            part = slice(at, at + _piece(x))
            apart = x[:, part].double() - y[part].double()
            total += (apart @ apart.T).cpu()
    return total


def _products(x: Tensor) -> Tensor:
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return _in_pieces(x, lambda part: part.double())
    total = _lower_half(x)
    if not bool(total.isfinite().all()):  # liars may send any numbers
        return _in_pieces(x, lambda part: part.double())
    return total.tril() + total.tril(-1).T


def _lower_half(x: Tensor) -> Tensor:
    """In tiles that a processor likes: whole tiles of rows by whole tiles of columns, then what is left of both."""
    n = len(x)
    total, block_products = torch.zeros(n, n, dtype=torch.float64), torch.zeros(n, n)
    tiles = list(_tiles(n))
    for at in range(0, x.shape[1], _BLOCK):
        block = x[:, at : at + _BLOCK]
        for rows, columns in tiles:
            torch.mm(block[rows], block[columns].T, out=block_products[rows, columns])
        total += block_products
    return total


def _tiles(n: int) -> Iterator[tuple[slice, slice]]:
    whole = n - n % _TILE
    for row in range(0, whole, _TILE):
        yield slice(row, row + _TILE), slice(0, row + _TILE)
    if whole < n:
        yield slice(whole, n), slice(0, whole)
        yield slice(whole, n), slice(whole, n)


def _parted(xs: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Those that a kernel takes, and the others."""
    in_kernel = [x for x in xs if _in_kernel(x)]
    return in_kernel, [x for x in xs if not _in_kernel(x)]


def _in_kernel(x: Tensor) -> bool:
    fits = x.dtype == torch.float32 and 1 < len(x) <= _KERNEL_ROWS and x.shape[1] > 0 and x.stride(1) == 1
    return fits and _FOUND and x.device.type in DEVICES


def _by_kernel(xs: list[Tensor]) -> Tensor:
    """Of all of them together: the host waits once."""
    narrow, wide = ([x for x in xs if (x.shape[1] <= _NARROW) is small] for small in (True, False))
    total = torch.stack([_stretches(x) for x in (*wide, *([torch.cat(narrow, 1)] if narrow else ()))]).sum(0).cpu()
    if bool(total.isfinite().all()):
        return total
    return torch.stack([_in_pieces(x, lambda part: part.double()) for x in xs]).sum(0)


def _stretches(x: Tensor) -> Tensor:
    """Stretch by stretch in float32, and these added up in float64."""
    from atoll.reducers import gram_kernels

    n, d = x.shape
    rows, steps = max(16, 1 << (n - 1).bit_length()), min(_STEPS, -(-d // _COLUMNS))
    stretches = -(-d // (steps * _COLUMNS))
    parts = torch.empty((stretches, rows, rows), dtype=torch.float32, device=x.device)
    gram_kernels.products[(stretches,)](x, parts, n, d, x.stride(0), ROWS=rows, BLOCK=_COLUMNS, STEPS=steps)
    return parts.sum(0, dtype=torch.float64)[:n, :n]


def _centred_products(x: Tensor, members: Tensor) -> Tensor:
    """Of the differences to the first of them."""
    rows = members.to(x.device)

    def differences(part: Tensor) -> Tensor:
        chosen = part[rows].double()
        return chosen - chosen[:1]

    return _in_pieces(x, differences)


def _in_pieces(x: Tensor, doubled: Callable[[Tensor], Tensor]) -> Tensor:
    """The products of what `doubled` makes of some columns, on the host; many small products, side by side."""
    total: Tensor | None = None
    for at in range(0, max(1, x.shape[1]), _piece(x)):
        y = doubled(x[:, at : at + _piece(x)])
        whole = y.shape[1] // _SIDE * _SIDE
        blocks = y[:, :whole].reshape(len(y), whole // _SIDE, _SIDE).transpose(0, 1)
        part = torch.bmm(blocks, blocks.mT).sum(0) + y[:, whole:] @ y[:, whole:].T
        total = part if total is None else total + part
    assert total is not None
    return total.cpu()


def _piece(x: Tensor) -> int:
    """Columns that are looked at together."""
    return max(1, _PIECE // max(1, len(x))) if x.device.type == "cpu" else max(1, 4 * _PIECE // max(1, len(x)))


def _groups(near: Tensor) -> list[Tensor]:
    """Updates that are near to each other, step by step; nobody who is near to nobody."""
    if not bool(near.any()):
        return []
    from scipy.sparse import coo_array  # slow to import, and few updates are so near to each other
    from scipy.sparse.csgraph import connected_components

    _, labels = connected_components(coo_array(near.numpy()), directed=False)
    groups = [torch.from_numpy((labels == k).nonzero()[0]) for k in range(labels.max() + 1)]
    return [members for members in groups if len(members) > 1]
