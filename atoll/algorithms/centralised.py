"""Centralised training."""

from dataclasses import dataclass
from typing import ClassVar

from atoll.algorithms.local import begin, change, descend, gradient, move
from atoll.algorithms.optimizers import SGD, Optimizer
from atoll.core import Info, Model, Positive, Task, Total, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class Centralised:
    """All data in one place: what could be had without federation. The optimizer's state lives on between rounds."""

    pooled: ClassVar[bool] = True

    task: Task
    lr: Positive
    optimizer: Optimizer = SGD()

    def init(self, model: Model) -> Tree:
        return model

    def memory(self, model: Model) -> Tree:
        return {"opt": self.optimizer.init(model["params"])}

    def send(self, server: Tree) -> Tree:
        return server

    def start(self, sent: Tree, memory: Tree) -> Tree:
        return {**begin(self.optimizer, sent), "opt": memory["opt"]}

    def step(self, carry: Tree, sent: Tree, memory: Tree, batch: Tree) -> Tree:
        g, carry = gradient(self.task, carry, batch)
        return descend(self.optimizer, carry, g, self.lr)

    def finish(self, carry: Tree, sent: Tree, memory: Tree, info: Info) -> tuple[Update, Tree]:
        return change(carry, sent, info), {"opt": carry["opt"]}

    def apply(self, server: Tree, total: Total) -> Tree:
        return move(server, total.mean(), 1.0)
