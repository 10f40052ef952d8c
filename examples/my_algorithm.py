"""An algorithm of one's own, outside the package: FedAvg that weighs clients by the root of their examples.

cd examples && atoll check my_algorithm:RootAvg && atoll run my_algorithm.toml
"""

from dataclasses import dataclass

from torch import Tensor

from atoll.algorithms.local import begin, descend, difference, gradient, move
from atoll.algorithms.optimizers import SGD, Optimizer
from atoll.core import Info, Model, Positive, Task, Total, Traits, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class RootAvg:
    """FedAvg between equal weights and weights by examples."""

    task: Task
    lr: Positive
    optimizer: Optimizer = SGD()

    def traits(self) -> Traits:
        return Traits()

    def init(self, model: Model, key: Tensor) -> Tree:
        return model

    def client_state(self, model: Model) -> Tree:
        return {}

    def send(self, server: Tree) -> Tree:
        return server

    def start(self, sent: Tree, own: Tree) -> Tree:
        return begin(self.optimizer, sent)

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        g, carry = gradient(self.task, carry, batch)
        return descend(self.optimizer, carry, g, self.lr)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        return Update(difference(carry, sent), info.examples.sqrt()), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        return move(server, total.mean(), 1.0)
