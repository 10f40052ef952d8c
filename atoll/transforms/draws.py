"""Draws that privacy rests on: from keyed counters, with tails as deep as 53 random bits reach."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.tree import Tree

Draw = Callable[[Tensor, tuple[int, ...]], Tensor]


def normal(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers in float32, up to 8.5 deviations out (Box and Muller, both of a pair).

    A radius from 23 bits would end at 5.8 deviations, which an event of probability 1e-8 goes beyond.
    """
    n = math.prod(shape)
    half = (n + 1) // 2
    words = _words(key, (3, half))
    u = (((words[0] << 20) | (words[1] >> 12)).double() + 0.5) * 2.0**-52
    size = torch.sqrt(-2.0 * torch.log(u)).float()
    angle = ((words[2] >> 9).float() + 0.5) * (2.0 * math.pi * 2.0**-23)
    both = torch.cat([size * torch.cos(angle), size * torch.sin(angle)])
    return both[:n].reshape(shape)


def laplace(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Laplace numbers of scale 1, in float32: the difference of two exponential ones."""
    words = _words(key, (2, *shape, 2))
    u = (((words[..., 0] << 20) | (words[..., 1] >> 12)).double() + 0.5) * 2.0**-52
    return (torch.log(u[0]) - torch.log(u[1])).float()


def like(value: Tree, key: Tensor, draw: Draw) -> Tree:
    """A draw in the shape of the tree: one long vector, cut into its tensors."""
    leaves = tree.leaves(value)
    sizes = [x.numel() for x in leaves]
    parts = iter(torch.split(draw(key.to(leaves[0].device), (sum(sizes),)), sizes) if leaves else ())
    return tree.map(lambda x: next(parts).reshape(x.shape), value)  # type: ignore[no-any-return]


def _words(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`rng.bits`, the fast way where there is one: for one key, on the host."""
    if key.device.type == "cpu" and torch._C._functorch.maybe_current_level() is None:
        return rng.host_bits(key, math.prod(shape)).reshape(shape)
    return rng.bits(key, shape)


def noisy(value: Tree, key: Tensor, draw: Draw, scale: float | Tensor) -> Tree:
    """Value + scale x draw."""
    noise = like(value, key, draw)
    return tree.map(lambda x, z: x + (scale * z).to(x.dtype), value, noise)  # type: ignore[no-any-return]
