"""Layers around the sum, checked when they are put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from atoll import rng
from atoll.core.types import Total, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class Spec:
    """What is certain about an update at one point of the chain."""

    l2: float | None = None  # no update is longer than this
    equal_weights: bool = False  # every client counts the same
    additive: bool = True  # the server needs only the weighted sum
    domain: Literal["real", "modular"] = "real"
    bits: float = 32.0  # sent per number, on average


class Transform:
    """One layer: `client` on the way in, `server` on the way out. The identity, unless a hook says otherwise."""

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        """Check what comes in, fix what depends on it, and say what goes out."""
        return self, spec

    def init(self, like: Tree) -> tuple[Tree, Tree]:
        """The server's state and one client's memory, for updates like this one."""
        return {}, {}

    def client(self, update: Update, state: Tree, memory: Tree, key: Tensor) -> tuple[Update, Tree]:
        """One client's update on its way to the server, and the client's new memory."""
        return update, memory

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        """The total on its way to the algorithm, and the server's new state."""
        return total, state

    def event(self) -> Any | None:
        """What a privacy accountant must know of one round; None for nothing."""
        return None


@dataclass(frozen=True)
class Chain(Transform):
    """Transforms as an onion: client sides in order, server sides in reverse."""

    layers: Sequence[Transform] = ()

    def bind(self, spec: Spec) -> tuple[Chain, Spec]:
        bound = []
        for layer in self.layers:
            layer, spec = layer.bind(spec)
            bound.append(layer)
        return Chain(tuple(bound)), spec

    def init(self, like: Tree) -> tuple[Tree, Tree]:
        pairs = [layer.init(like) for layer in self.layers]
        return {str(i): s for i, (s, _) in enumerate(pairs)}, {str(i): m for i, (_, m) in enumerate(pairs)}

    def client(self, update: Update, state: Tree, memory: Tree, key: Tensor) -> tuple[Update, Tree]:
        kept = {}
        for i, layer in enumerate(self.layers):
            update, kept[str(i)] = layer.client(update, state[str(i)], memory[str(i)], rng.fold(key, i))
        return update, kept

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        kept = dict(state)
        for i, layer in reversed(list(enumerate(self.layers))):
            total, kept[str(i)] = layer.server(total, state[str(i)], rng.fold(key, i))
        return total, kept
