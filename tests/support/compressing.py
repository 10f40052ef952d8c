"""Compressors by hand: one client's turn, and NumPy's view of trees and of the words that a key gives."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll import rng, tree
from atoll.core import Chain, Spec, Total, Transform, Update
from atoll.tree import Tree

Array = NDArray[Any]
KEY = rng.key("compressing")


class Client:
    """A chain of compressors and what one client keeps from turn to turn."""

    def __init__(self, like: Tree, *transforms: Transform, spec: Spec | None = None) -> None:
        self.chain, self.spec = Chain(transforms).bind(spec or Spec())
        self.state, self.own = self.chain.init(like)

    def sends(self, value: Tree, key: Tensor = KEY, weight: float = 1.0) -> Tree:
        """What arrives at the server."""
        update, self.own = self.chain.client(Update(value, torch.tensor(weight)), self.state, self.own, key)
        return update.value

    def residual(self) -> Tree:
        """What it holds back."""
        return self.own["0"]["residual"]  # type: ignore[no-any-return]

    def step(self, *arrived: tuple[Tree, float]) -> Tree:
        """The server's mean of what arrived, with weights, after the way back."""
        values, weights = zip(*arrived, strict=True)
        value = tree.map(lambda *xs: torch.stack([x * w for x, w in zip(xs, weights, strict=True)]).sum(0), *values)
        total = Total(value, torch.tensor(float(sum(weights))), torch.tensor(float(len(weights))))
        total, self.state = self.chain.server(total, self.state, KEY)
        return total.mean()


def first_key(place: int = 0, key: Tensor = KEY) -> Tensor:
    """What the first compressor of a chain, alone in its message, draws this tensor from."""
    return rng.fold(rng.fold(rng.fold(key, 0), 0), place)


def uniforms(key: Tensor, n: int) -> Array:
    """In [0, 1), float32."""
    return rng.quick_uniform(key, n).numpy()


def words(key: Tensor, n: int) -> Array:
    return rng.quick_words(key, n).numpy()


def normal(*shape: int, seed: Any = 0) -> Tensor:
    return rng.normal(rng.key("numbers", str(seed)), shape)


def close(found: Tensor, wanted: Array, within: float = 1e-6) -> None:
    """Equal up to float32's rounding of numbers as large as these."""
    scale = max(1e-30, float(np.abs(wanted).max(initial=0.0)))
    error = float(np.abs(found.numpy().astype(np.float64) - wanted).max(initial=0.0))
    assert error <= within * scale, f"{error} beside {scale}"
