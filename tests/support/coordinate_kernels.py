"""Coordinates by kernels against the same by torch, on a GPU or under Triton's interpreter."""

from collections.abc import Callable
from unittest.mock import patch

import torch
from torch import Tensor

from atoll.reducers import coordinates, gram


def compare(device: str, clients: tuple[int, ...], columns: int) -> None:
    """Values with ties, and rows that are further apart than they are long."""
    for n in clients:
        x = torch.randn(n, columns, generator=torch.Generator().manual_seed(n)).to(device)
        x[: n // 2, ::3] = x[-1, ::3]
        _agree(x, device, coordinates.median)
        wild = torch.cat([x, x[:1] * 1e30, -x[:1] * 1e37])
        _agree(wild, device, lambda x: coordinates.mean_of_ranks(x, 1, max(1, len(x) - 2)))
        _agree(x[:, columns // 4 : -3], device, lambda x: coordinates.mean_of_ranks(x, len(x) // 5, len(x) - 1))
        _agree(x, device, lambda x: coordinates.mean_around_median(x, len(x) - len(x) // 5))
        _distances(x, device)


def _agree(x: Tensor, device: str, f: Callable[[Tensor], Tensor]) -> None:
    coordinates.DEVICES.discard(device)
    by_torch = f(x)
    coordinates.DEVICES.add(device)
    torch.testing.assert_close(f(x), by_torch, rtol=1e-5, atol=1e-6)


def _distances(x: Tensor, device: str) -> None:
    """As float64 has them; also of updates that are nearly alike, and beside one whose squares float32 cannot hold."""
    near = torch.cat([x, x[:1] * (1 + 1e-5)])
    for rows in (x, x[:, 1:], near, torch.cat([near, torch.full_like(x[:1], 1e30)])):
        gram.DEVICES.add(device)
        parts = {"w": rows[:, :7], "v": rows[:, 7:]}  # the products of both are waited for once
        exact = ((rows.double()[:, None] - rows.double()[None]) ** 2).sum(2).cpu()
        for narrow in (8, 1000):  # each alone, and both together
            with patch.object(gram, "_NARROW", narrow):
                found = gram.squared_distances(parts, gram.gram(parts, len(rows)))
            torch.testing.assert_close(found, exact, rtol=1e-5, atol=0.0)
