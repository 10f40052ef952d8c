"""Draws that privacy rests on: from keyed counters, with tails as deep as 53 random bits reach."""

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from atoll import tree
from atoll.cpu_threads import cpu_threads
from atoll.rng import ahead, gpu, host
from atoll.rng.draws import BitSource, bits, normal_dp
from atoll.rng.keys import is_batched
from atoll.tree import Tree


class Draw(Protocol):
    """Numbers of one distribution in this shape, from words of 32 random bits."""

    def __call__(self, key: Tensor, shape: tuple[int, ...], source: BitSource = bits) -> Tensor: ...


def normal(key: Tensor, shape: tuple[int, ...], source: BitSource = bits) -> Tensor:
    """Standard normal numbers in float32, up to 8.5 deviations out."""
    n = math.prod(shape)
    if source is not fast_bits or is_batched(key):
        return normal_dp(key, shape, source)
    drawn = gpu.normal(key, n)
    drawn = ahead.normal(key, n) if drawn is None else drawn
    if drawn is not None:
        return drawn.reshape(shape)
    with cpu_threads(1 if n < ahead.SMALL else None):
        return normal_dp(key, shape, source)


def laplace(key: Tensor, shape: tuple[int, ...], source: BitSource = bits) -> Tensor:
    """Laplace numbers of scale 1, in float32: the difference of two exponential ones."""
    words = source(key, (2, *shape, 2))
    u = (((words[..., 0] << 20) | (words[..., 1] >> 12)).double() + 0.5) * 2.0**-52
    return (torch.log(u[0]) - torch.log(u[1])).float()


def flat_noise(value: Tree, key: Tensor, draw: Draw, source: BitSource = bits) -> Tensor:
    """A draw for every number of the tree, as one long vector."""
    leaves = tree.leaves(value)
    device = leaves[0].device if leaves else key.device
    there = key.to(device, non_blocking=True)  # else the host would wait for all that the device has to do before
    return draw(there, (sum(x.numel() for x in leaves),), source)


def unflatten(vector: Tensor, value: Tree) -> Tree:
    """A long vector in the shape of the tree."""
    parts = iter(vector.split_with_sizes([x.numel() for x in tree.leaves(value)]))
    return tree.map(lambda x: next(parts).reshape(x.shape), value)  # type: ignore[no-any-return]


def noise_like(value: Tree, key: Tensor, draw: Draw, source: BitSource = bits) -> Tree:
    return unflatten(flat_noise(value, key, draw, source), value)


def add_flat(value: Tree, vector: Tensor) -> Tree:
    """Value + a long vector; on a GPU in one call where that is possible."""
    leaves = tree.leaves(value)
    if (
        vector.device.type == "cpu"
        or is_batched(vector)
        or any(x.dtype != vector.dtype or is_batched(x) for x in leaves)
    ):
        parts = iter(vector.split_with_sizes([x.numel() for x in leaves]))
        return tree.map(lambda x: x + next(parts).reshape(x.shape).to(x.dtype), value)  # type: ignore[no-any-return]
    sums = iter(torch._foreach_add(leaves, tree.leaves(unflatten(vector, value))) if leaves else ())
    return tree.map(lambda _: next(sums), value)  # type: ignore[no-any-return]


def add_noise(value: Tree, key: Tensor, draw: Draw, scale: float | Tensor, source: BitSource = bits) -> Tree:
    """Value + scale x draw."""
    return add_flat(value, scale * flat_noise(value, key, draw, source))


def fast_bits(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`rng.bits`, the fast way: on the host where the key is there and may be looked at, on a GPU in one kernel."""
    if is_batched(key):
        return bits(key, shape)
    n = math.prod(shape)
    if key.device.type != "cpu":
        drawn = gpu.bits(key, n)
        return bits(key, shape) if drawn is None else drawn.reshape(shape)
    return torch.from_numpy(host.halves(host.stream(key, np.arange((n + 1) // 2)))[:n]).reshape(shape)


def add_server_noise(value: Tree, key: Tensor, draw: Draw, scale: float | Tensor) -> Tree:
    """`add_noise` on the server, where the key is at hand."""
    return add_noise(value, key, draw, scale, fast_bits)
