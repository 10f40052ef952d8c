"""FedProx."""

from dataclasses import dataclass

from atoll import tree
from atoll.algorithms.local import begin, change, descend, gradient, move
from atoll.algorithms.optimizers import SGD, Optimizer
from atoll.core import Info, Model, Positive, Task, Total, Unsigned, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class FedProx:
    """FedAvg on the loss + mu/2 |w - w_global|^2, a pull back to the server's model (Li et al., 2020)."""

    task: Task
    lr: Positive
    mu: Unsigned
    optimizer: Optimizer = SGD()
    server_lr: Positive = 1.0

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
        g = tree.add_scaled(g, tree.sub(carry["params"], sent["params"]), self.mu)
        return descend(self.optimizer, carry, g, self.lr)

    def finish(self, carry: Tree, sent: Tree, memory: Tree, info: Info) -> tuple[Update, Tree]:
        return change(carry, sent, info), memory

    def apply(self, server: Tree, total: Total) -> Tree:
        return move(server, total.mean(), self.server_lr)
