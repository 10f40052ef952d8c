"""Local-only training."""

from dataclasses import dataclass
from typing import ClassVar

from atoll.algorithms.local import begin, descend, gradient, model_of
from atoll.algorithms.optimizers import SGD, Optimizer
from atoll.core import Info, Model, Positive, Task, Total, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class LocalOnly:
    """Each client alone: nothing is sent, everyone goes on from its own model. The baseline that FL must beat."""

    personal: ClassVar[bool] = True
    partial: ClassVar[bool] = True

    task: Task
    lr: Positive
    optimizer: Optimizer = SGD()

    def init(self, model: Model) -> Tree:
        return model

    def memory(self, model: Model) -> Tree:
        return {**model, "opt": self.optimizer.init(model["params"])}

    def send(self, server: Tree) -> Tree:
        return {}

    def start(self, sent: Tree, memory: Tree) -> Tree:
        return {**begin(self.optimizer, memory), "opt": memory["opt"]}

    def step(self, carry: Tree, sent: Tree, memory: Tree, batch: Tree) -> Tree:
        g, carry = gradient(self.task, carry, batch)
        return descend(self.optimizer, carry, g, self.lr)

    def finish(self, carry: Tree, sent: Tree, memory: Tree, info: Info) -> tuple[Update, Tree]:
        return Update({}, info.examples), {**model_of(carry), "opt": carry["opt"]}

    def apply(self, server: Tree, total: Total) -> Tree:
        return server
