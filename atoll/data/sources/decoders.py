"""Decoders and augmentations of the packaged sets: pure functions of one client's batch, picklable, vmappable."""

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll import rng
from atoll.data.decode import Pixels
from atoll.tree import Tree


@dataclass(frozen=True)
class Tokens:
    """Tokens in few bytes become int64; so do their targets, where those are whole numbers."""

    targets: bool = True

    def __call__(self, batch: Tree) -> Tree:
        y = batch["y"].long() if self.targets else batch["y"]
        return {**batch, "x": batch["x"].long(), "y": y}


@dataclass(frozen=True)
class Bag:
    """Tokens as a bag: how often each of the vocabulary occurs, divided by the length; padding (0) does not count."""

    vocabulary: int

    def __call__(self, batch: Tree) -> Tree:
        tokens = batch["x"].long()
        real = (tokens != 0).float()
        counts = torch.zeros_like(real[..., :1]).expand(*real.shape[:-1], self.vocabulary)
        counts = counts.scatter_add(-1, tokens, real)
        return {**batch, "x": counts / real.sum(-1, keepdim=True).clamp(min=1)}


@dataclass(frozen=True)
class Floats:
    """Numbers in few bytes become float32: (x - shift) * scale for each column where given."""

    shift: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    def __call__(self, batch: Tree) -> Tree:
        x = batch["x"].float()
        if self.scale:
            # column by column: a constant tensor would be a copy to the device inside a captured graph
            parts = zip(x.unbind(-1), self.shift, self.scale, strict=True)
            x = torch.stack([(c - shift) * scale for c, shift, scale in parts], -1)
        return {**batch, "x": x}


@dataclass(frozen=True)
class MixedColumns:
    """A row of whole numbers as features, column by column, in the order of `steps`.

    ("scale", shift, factor): one number. ("log", factor): factor * log(1 + x). ("one", n): one of n, as n columns.
    ("bits", n): a set of n, as n columns.
    """

    steps: tuple[tuple[str, float] | tuple[str, float, float], ...]

    @property
    def width(self) -> int:
        """The features of one decoded row."""
        return sum(int(step[1]) if step[0] in ("one", "bits") else 1 for step in self.steps)

    def __call__(self, batch: Tree) -> Tree:
        columns = batch["x"].unbind(-1)
        return {**batch, "x": torch.cat([_expand(c, s) for c, s in zip(columns, self.steps, strict=True)], -1)}


def _expand(column: Tensor, step: tuple[str, float] | tuple[str, float, float]) -> Tensor:
    x = column[..., None]
    if step[0] in ("one", "bits"):
        n = torch.arange(int(step[1]), device=x.device)
        return (x == n).float() if step[0] == "one" else ((x >> n) & 1).float()
    if step[0] == "log":
        return x.float().clamp(min=0).log1p() * step[1]
    return (x.float() - step[1]) * step[2]  # type: ignore[misc]


@dataclass(frozen=True)
class Scrambled:
    """pfl-research's CIFAR-10: planes of red, green and blue read as if the colours of each pixel lay together."""

    then: Pixels

    def __call__(self, batch: Tree) -> Tree:
        x = batch["x"]
        *rows, channels, height, width = x.shape
        mixed = x.reshape(*rows, height, width, channels)
        return self.then({**batch, "x": mixed.movedim(-1, -3)})


@dataclass(frozen=True)
class CropFlip:
    """Pad by reflection, crop a random window of the old size, flip left to right half of the time; for each example.

    As NIID-Bench trains on CIFAR-10. Draws from batch["key"], so a step is the same on any engine.
    """

    pad: int = 4

    def __call__(self, batch: Tree) -> Tree:
        x, key = batch["x"], batch["key"]
        own = torch.stack(rng.threefry(key[0], key[1], 0x61756721, 0))  # dropout draws from the key itself
        u = rng.uniform(own, (3, x.shape[0]))
        span = 2 * self.pad + 1
        down, right = ((u[i] * span).long().clamp(max=span - 1) - self.pad for i in (0, 1))
        rows = _reflected(down, x.shape[-2])
        columns = _reflected(right, x.shape[-1])
        columns = torch.where((u[2] < 0.5)[:, None], columns.flip(-1), columns)
        x = x.gather(-2, rows[:, None, :, None].expand(x.shape))
        return {**batch, "x": x.gather(-1, columns[:, None, None, :].expand(x.shape))}


def _reflected(offset: Tensor, size: int) -> Tensor:
    """Where the places of a window that is moved by `offset` lie in the picture, mirrored at its edges: (B, size)."""
    at = (torch.arange(size, device=offset.device) + offset[:, None]).abs()
    return (size - 1) - ((size - 1) - at).abs()
