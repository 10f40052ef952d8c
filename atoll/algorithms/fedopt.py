"""FedOpt: FedAvg whose server takes the mean change for a gradient, and an optimizer for its step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from atoll import tree
from atoll.algorithms.local import begin, delta_update, descend, equal_weight, gradient, model_of, move
from atoll.algorithms.optimizers import PLAIN_SGD, SGD, Optimizer
from atoll.core import Fraction, Info, Model, Positive, Task, Total, Traits, Update
from atoll.tree import Tree


class ServerOptimizer(Protocol):
    """Pure: its state is a part of the server's."""

    def init(self, params: Tree) -> Tree:
        """The state before the first round."""
        ...

    def direction(self, state: Tree, delta: Tree) -> tuple[Tree, Tree]:
        """Where the mean change leads, and the new state."""
        ...


@dataclass(frozen=True)
class FedOpt:
    """Clients do as in FedAvg; the server moves along `server`'s direction (Reddi et al., 2021).

    D = the clients' mean change;  w <- w + server_lr * direction(D)
    """

    task: Task
    lr: Positive
    server_lr: Positive
    server: ServerOptimizer
    optimizer: Optimizer = SGD()
    weights: Literal["examples", "equal"] = "examples"

    def traits(self) -> Traits:
        return Traits()

    def init(self, model: Model, key: Tensor) -> Tree:
        return {**model, **self.server.init(model["params"])}

    def client_state(self, model: Model) -> Tree:
        return {}

    def send(self, server: Tree) -> Tree:
        return model_of(server)

    def start(self, sent: Tree, own: Tree) -> Tree:
        return begin(self.optimizer, sent)

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        g, carry = gradient(self.task, carry, batch)
        return descend(self.optimizer, carry, g, self.lr)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        update = delta_update(carry, sent, info)
        return (update if self.weights == "examples" else update._replace(weight=equal_weight(info))), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        mean = total.mean()
        direction, state = self.server.direction(server, mean["delta"])
        return {**move(server, {**mean, "delta": direction}, self.server_lr), **state}


@dataclass(frozen=True)
class Straight:
    """The mean change itself: FedAvg."""

    def init(self, params: Tree) -> Tree:
        return {}

    def direction(self, state: Tree, delta: Tree) -> tuple[Tree, Tree]:
        return delta, {}


@dataclass(frozen=True)
class ServerMomentum:
    """b <- momentum * b + D."""

    momentum: Fraction

    def init(self, params: Tree) -> Tree:
        return {"momentum": tree.zeros_like(params)}

    def direction(self, state: Tree, delta: Tree) -> tuple[Tree, Tree]:
        b = tree.map(lambda b, d: self.momentum * b + d, state["momentum"], delta)
        return b, {"momentum": b}


@dataclass(frozen=True)
class Adaptive:
    """m <- b1 m + (1 - b1) D;  m / (sqrt(v) + tau), v the second moment, at tau^2 before the first round."""

    second_moment: Callable[[Tensor, Tensor, float], Tensor]  # of v, D and b2
    b1: Fraction
    b2: Fraction
    tau: Positive

    def init(self, params: Tree) -> Tree:
        v = tree.map(lambda p: 0 * p + self.tau**2, params)
        return {"m": tree.zeros_like(params), "v": v}

    def direction(self, state: Tree, delta: Tree) -> tuple[Tree, Tree]:
        m = tree.map(lambda m, d: self.b1 * m + (1 - self.b1) * d, state["m"], delta)
        v = tree.map(lambda v, d: self.second_moment(v, d, self.b2), state["v"], delta)
        return tree.map(lambda m, v: m / (v.sqrt() + self.tau), m, v), {"m": m, "v": v}


def adagrad(v: Tensor, d: Tensor, b2: float) -> Tensor:
    """The sum of all squares so far; b2 has no part in it."""
    return v + d * d


def adam(v: Tensor, d: Tensor, b2: float) -> Tensor:
    """A running mean of squares."""
    return b2 * v + (1 - b2) * d * d


def yogi(v: Tensor, d: Tensor, b2: float) -> Tensor:
    """Like Adam's, but a step is never larger than the square itself: v falls slowly."""
    return v - (1 - b2) * d * d * (v - d * d).sign()


def fedavgm(
    task: Task, lr: Positive, server_lr: Positive = 1.0, momentum: Fraction = 0.9, optimizer: Optimizer = PLAIN_SGD
) -> FedOpt:
    """FedAvg with momentum on the server (Hsu et al., 2019).

    b <- momentum * b + mean change;  w <- w + server_lr * b
    """
    return FedOpt(task, lr, server_lr, ServerMomentum(momentum), optimizer)


def fedadagrad(
    task: Task,
    lr: Positive,
    server_lr: Positive = 0.01,
    b1: Fraction = 0.0,
    tau: Positive = 1e-3,
    optimizer: Optimizer = PLAIN_SGD,
) -> FedOpt:
    """Adagrad on the server, with the mean change D as its direction (Reddi et al., 2021).

    m <- b1 m + (1 - b1) D;  v <- v + D^2;  w <- w + server_lr * m / (sqrt(v) + tau);  v starts at tau^2
    """
    return FedOpt(task, lr, server_lr, Adaptive(adagrad, b1, 0.0, tau), optimizer)


def fedadam(
    task: Task,
    lr: Positive,
    server_lr: Positive = 0.01,
    b1: Fraction = 0.9,
    b2: Fraction = 0.99,
    tau: Positive = 1e-3,
    optimizer: Optimizer = PLAIN_SGD,
) -> FedOpt:
    """Adam on the server, with the mean change D as its direction (Reddi et al., 2021).

    m <- b1 m + (1 - b1) D;  v <- b2 v + (1 - b2) D^2;  w <- w + server_lr * m / (sqrt(v) + tau);  v starts at tau^2
    """
    return FedOpt(task, lr, server_lr, Adaptive(adam, b1, b2, tau), optimizer)


def fedyogi(
    task: Task,
    lr: Positive,
    server_lr: Positive = 0.01,
    b1: Fraction = 0.9,
    b2: Fraction = 0.99,
    tau: Positive = 1e-3,
    optimizer: Optimizer = PLAIN_SGD,
) -> FedOpt:
    """Yogi on the server, with the mean change D as its direction (Reddi et al., 2021).

    m <- b1 m + (1 - b1) D;  v <- v - (1 - b2) D^2 sign(v - D^2);  w <- w + server_lr * m / (sqrt(v) + tau).
    v starts at tau^2.
    """
    return FedOpt(task, lr, server_lr, Adaptive(yogi, b1, b2, tau), optimizer)
