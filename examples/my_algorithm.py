"""An algorithm of one's own, outside the package: FedAvg that weighs clients by the root of their examples.

PYTHONPATH=examples atoll check my_algorithm:RootAvg
PYTHONPATH=examples atoll run examples/my_algorithm.toml
"""

from dataclasses import dataclass

from atoll.algorithms.local import begin, descend, difference, gradient, move
from atoll.algorithms.optimizers import SGD, Optimizer
from atoll.core import Info, Model, Positive, Task, Total, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class RootAvg:
    """FedAvg between equal weights and weights by examples."""

    task: Task
    lr: Positive
    optimizer: Optimizer = SGD()

    def init(self, model: Model) -> Tree:
        return model

    def memory(self, model: Model) -> Tree:
        return {}

    def send(self, server: Tree) -> Tree:
        return server

    def start(self, sent: Tree, memory: Tree) -> Tree:
        return begin(self.optimizer, sent)

    def step(self, carry: Tree, sent: Tree, memory: Tree, batch: Tree) -> Tree:
        g, carry = gradient(self.task, carry, batch)
        return descend(self.optimizer, carry, g, self.lr)

    def finish(self, carry: Tree, sent: Tree, memory: Tree, info: Info) -> tuple[Update, Tree]:
        return Update(difference(carry, sent), info.examples.sqrt()), memory

    def apply(self, server: Tree, total: Total) -> Tree:
        return move(server, total.mean(), 1.0)
