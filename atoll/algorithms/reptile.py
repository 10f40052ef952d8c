"""Reptile."""

from dataclasses import dataclass

from torch import Tensor

from atoll.algorithms.local import begin, descend, difference, gradient, move, one
from atoll.algorithms.optimizers import SGD, Optimizer
from atoll.core import Info, Model, Share, Task, Total, Traits, Update
from atoll.core.settings import Positive
from atoll.tree import Tree


@dataclass(frozen=True)
class Reptile:
    """Move a share of the way to the clients' plain mean: a start from which few steps suffice (Nichol et al., 2018).

    w <- w + server_lr * mean(w_k - w). What counts is the accuracy *after* local training: evaluate.after = true.
    """

    task: Task
    lr: Positive
    server_lr: Share = 0.5
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
        return Update(difference(carry, sent), one(info)), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        return move(server, total.mean(), self.server_lr)
