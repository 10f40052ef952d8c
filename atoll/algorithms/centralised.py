"""Centralised training."""

from dataclasses import dataclass

from torch import Tensor

from atoll.algorithms.local import begin, delta_update, descend, gradient, move
from atoll.algorithms.optimizers import SGD, Optimizer
from atoll.core import Info, Model, Positive, Task, Total, Traits, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class Centralised:
    """All data in one place: what could be had without federation. The optimizer's state lives on between rounds."""

    task: Task
    lr: Positive
    optimizer: Optimizer = SGD()

    def traits(self) -> Traits:
        return Traits(pooled=True)

    def init(self, model: Model, key: Tensor) -> Tree:
        return model

    def client_state(self, model: Model) -> Tree:
        return {"opt": self.optimizer.init(model["params"])}

    def send(self, server: Tree) -> Tree:
        return server

    def start(self, sent: Tree, own: Tree) -> Tree:
        return {**begin(self.optimizer, sent), "opt": own["opt"]}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        g, carry = gradient(self.task, carry, batch)
        return descend(self.optimizer, carry, g, self.lr)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        return delta_update(carry, sent, info), {"opt": carry["opt"]}

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        return move(server, total.mean(), 1.0)
