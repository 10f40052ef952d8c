"""A program with the client axis added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from atoll import tree
from atoll.core import Info, functional
from atoll.engines.capture import Captured
from atoll.engines.program import ClientSteps
from atoll.tree import Tree

Layout = Callable[[Tensor], Tensor]  # how a leaf comes to lie in memory


@dataclass(frozen=True)
class Stacked:
    """Made once for an algorithm and a chain; `step` and `finish` are captured where that is wanted."""

    start: Callable[..., Tree]
    step: Callable[..., Tree]
    finish: Callable[..., Tree]

    def refused(self) -> str | None:
        """Why it could not be compiled, if it should have been."""
        return next((x for x in (getattr(f, "refused", None) for f in (self.step, self.finish)) if x), None)


def stacked(program: ClientSteps, per_client: bool, many: bool, capture: bool, compile: bool = False) -> Stacked:
    """The three pieces for many clients.

    `per_client`: what was sent and the chain's state have a client axis; `many`: the settings, too.
    """
    s, m = (0 if per_client else None), (0 if many else None)
    wrap = partial(Captured, compile=compile) if capture else _eager

    def step(settings: Tree, carry: Tree, sent: Tree, own: Tree, columns: Tree, *batch: Tensor) -> Tree:
        dims = (_axis(settings, m), 0, s, _axis(own), None, 0, 0, 0)
        return vmap(program.step, in_dims=dims)(settings, carry, sent, own, columns, *batch)  # type: ignore[no-any-return]

    def finish(settings: Tree, carry: Tree, sent: Tree, own: Tree, state: Tree, info: Tree, keys: Tensor) -> Tree:
        def one(settings: Tree, carry: Tree, sent: Tree, own: Tree, state: Tree, info: Tree, key: Tensor) -> Tree:
            return program.finish(settings, carry, sent, own, state, Info(**info), key)

        dims = (_axis(settings, m), 0, s, _axis(own), _axis(state, s), 0, 0)
        return vmap(one, in_dims=dims)(settings, carry, sent, own, state, info, keys)  # type: ignore[no-any-return]

    return Stacked(_starting(program, s, m), wrap(step), wrap(finish))


def _starting(program: ClientSteps, s: int | None, m: int | None) -> Callable[..., Tree]:
    def start(n: int, settings: Tree, sent: Tree, own: Tree, layout: Layout = torch.Tensor.contiguous) -> Tree:
        with functional():
            if s is None and _axis(own) is None:  # all start alike: make one and repeat it
                carry = tree.stack(program.start(settings, sent, own), n)
            else:
                dims = (_axis(settings, m), s, _axis(own))
                carry = vmap(program.start, in_dims=dims)(settings, sent, own)
        return tree.map(layout, carry)  # type: ignore[no-any-return]

    return start


def _eager(f: Callable[..., Tree]) -> Callable[..., Tree]:
    def call(*args: Any) -> Tree:
        with functional():
            return f(*args)

    return call


def _axis(tensors: Tree, axis: int | None = 0) -> int | None:
    """The client axis of a tree, if there is anything in it."""
    return axis if tree.leaves(tensors) else None
