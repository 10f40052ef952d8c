"""Local optimizers as pure functions: `init` a state, `step` parameters and state. Equal to torch.optim, step for step.

Structure is decided when one is built (is there a momentum buffer?), numbers are data (how much momentum?).
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from atoll import tree
from atoll.core import Fraction, Positive, Unsigned
from atoll.tree import Tree


class Optimizer(Protocol):
    """Pure: the state travels with the client."""

    def init(self, params: Tree) -> Tree:
        """The state before the first step."""
        ...

    def step(self, params: Tree, g: Tree, state: Tree, lr: float) -> tuple[Tree, Tree]:
        """New parameters and state after one step against the gradient `g`."""
        ...


@dataclass(frozen=True)
class SGD:
    """W - lr * g."""

    def init(self, params: Tree) -> Tree:
        return {}

    def step(self, params: Tree, g: Tree, state: Tree, lr: float) -> tuple[Tree, Tree]:
        return tree.add_scaled(params, g, -lr), state


PLAIN_SGD = SGD()  # the default of builders that are functions


@dataclass(frozen=True)
class Momentum:
    """Heavy ball, b = momentum * b + g; with Nesterov's look-ahead the step is g + momentum * b."""

    momentum: Fraction
    nesterov: bool = False

    def init(self, params: Tree) -> Tree:
        return {"momentum": tree.zeros_like(params)}

    def step(self, params: Tree, g: Tree, state: Tree, lr: float) -> tuple[Tree, Tree]:
        b = tree.add_scaled(g, state["momentum"], self.momentum)
        ahead = tree.add_scaled(g, b, self.momentum) if self.nesterov else b
        return tree.add_scaled(params, ahead, -lr), {"momentum": b}


@dataclass(frozen=True)
class Decayed:
    """Weight decay as an L2 penalty: the inner optimizer sees g + weight_decay * w."""

    inner: Optimizer
    weight_decay: Unsigned

    def init(self, params: Tree) -> Tree:
        return self.inner.init(params)

    def step(self, params: Tree, g: Tree, state: Tree, lr: float) -> tuple[Tree, Tree]:
        return self.inner.step(params, tree.add_scaled(g, params, self.weight_decay), state, lr)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015), bias-corrected."""

    b1: Fraction = 0.9
    b2: Fraction = 0.999
    eps: Positive = 1e-8

    def init(self, params: Tree) -> Tree:
        return {"m": tree.zeros_like(params), "v": tree.zeros_like(params), "t": zero(params)}

    def step(self, params: Tree, g: Tree, state: Tree, lr: float) -> tuple[Tree, Tree]:
        t = state["t"] + 1
        m = tree.map(lambda m, d: self.b1 * m + (1 - self.b1) * d, state["m"], g)
        v = tree.map(lambda v, d: self.b2 * v + (1 - self.b2) * d * d, state["v"], g)
        rate, root = lr / (1 - self.b1**t), torch.sqrt(1 - self.b2**t)
        moved = tree.map(lambda p, m, v: p - rate * m / (v.sqrt() / root + self.eps), params, m, v)
        return moved, {"m": m, "v": v, "t": t}


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    weight_decay: Unsigned = 0.01
    inner: Adam = field(default_factory=Adam)

    def init(self, params: Tree) -> Tree:
        return self.inner.init(params)

    def step(self, params: Tree, g: Tree, state: Tree, lr: float) -> tuple[Tree, Tree]:
        return self.inner.step(tree.scale(params, 1 - lr * self.weight_decay), g, state, lr)


def sgd(momentum: Fraction = 0.0, nesterov: bool = False, weight_decay: Unsigned = 0.0) -> Optimizer:
    """Stochastic gradient descent, with momentum and weight decay if asked for."""
    inner: Optimizer = Momentum(momentum, nesterov) if momentum != 0 else SGD()
    return Decayed(inner, weight_decay) if weight_decay != 0 else inner


def adam(b1: Fraction = 0.9, b2: Fraction = 0.999, eps: Positive = 1e-8, weight_decay: Unsigned = 0.0) -> Optimizer:
    """Adam; weight decay as an L2 penalty."""
    inner = Adam(b1, b2, eps)
    return Decayed(inner, weight_decay) if weight_decay != 0 else inner


def adamw(b1: Fraction = 0.9, b2: Fraction = 0.999, eps: Positive = 1e-8, weight_decay: Unsigned = 0.01) -> Optimizer:
    """Adam with decoupled weight decay."""
    return AdamW(weight_decay, Adam(b1, b2, eps))


def zero(params: Tree) -> torch.Tensor:
    """A zero where the parameters are."""
    return tree.leaves(params)[0].new_zeros(())


def linear(optimizer: Optimizer) -> Optimizer | None:
    """The part of the optimizer that adds up gradients linearly (no decay); None if it is not linear in them."""
    inner: Any = optimizer.inner if isinstance(optimizer, Decayed) else optimizer
    return inner if isinstance(inner, SGD | Momentum) else None


@dataclass(frozen=True)
class EffectiveSteps:
    """How many gradients a client's change is worth: K after K steps of SGD, FedNova's |a_i| with momentum.

    Found by running the optimizer's linear part on a number whose gradient is always 1.
    """

    optimizer: Optimizer

    def init(self, params: Tree) -> Tree:
        """Before the first step."""
        none = {"steps": zero(params)}
        return {**none, "opt": self._linear.init(none)}

    def add(self, counted: Tree) -> Tree:
        """After one more step."""
        n = {"steps": counted["steps"]}
        uphill = tree.map(lambda x: -torch.ones_like(x), n)
        moved, opt = self._linear.step(n, uphill, counted["opt"], 1.0)
        return {**moved, "opt": opt}

    @property
    def _linear(self) -> Optimizer:
        return linear(self.optimizer) or SGD()


OPTIMIZERS = {"sgd": sgd, "adam": adam, "adamw": adamw}
