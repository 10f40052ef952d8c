"""FedAvgM."""

from dataclasses import dataclass

from torch import Tensor

from atoll import tree
from atoll.algorithms.local import begin, change, descend, gradient, move
from atoll.algorithms.optimizers import SGD, Optimizer
from atoll.core import Info, Model, Positive, Task, Total, Traits, Update
from atoll.core.settings import Fraction
from atoll.tree import Tree


@dataclass(frozen=True)
class FedAvgM:
    """FedAvg with momentum on the server (Hsu et al., 2019).

    b <- momentum * b + mean change;  w <- w + server_lr * b
    """

    task: Task
    lr: Positive
    server_lr: Positive = 1.0
    momentum: Fraction = 0.9
    optimizer: Optimizer = SGD()

    def traits(self) -> Traits:
        return Traits()

    def init(self, model: Model, key: Tensor) -> Tree:
        return {**model, "momentum": tree.zeros_like(model["params"])}

    def client_state(self, model: Model) -> Tree:
        return {}

    def send(self, server: Tree) -> Tree:
        return {"params": server["params"], "buffers": server["buffers"]}

    def start(self, sent: Tree, own: Tree) -> Tree:
        return begin(self.optimizer, sent)

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        g, carry = gradient(self.task, carry, batch)
        return descend(self.optimizer, carry, g, self.lr)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        return change(carry, sent, info), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        mean = total.mean()
        b = tree.map(lambda b, d: self.momentum * b + d, server["momentum"], mean["delta"])
        return {**move(server, {**mean, "delta": b}, self.server_lr), "momentum": b}
