"""Ditto."""

from dataclasses import dataclass

from torch import Tensor

from atoll import tree
from atoll.algorithms.local import begin, delta_update, descend, gradient, model_of, move
from atoll.algorithms.optimizers import SGD, Optimizer
from atoll.core import Info, Model, Positive, Task, Total, Traits, Unsigned, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class Ditto:
    """A model of its own for each client, pulled towards the FedAvg model it helps to train (Li et al., 2021).

    Shared: FedAvg. Own: v <- v - lr (grad F_k(v) + mu (v - w)), kept by the client, never sent.
    """

    task: Task
    lr: Positive
    mu: Unsigned = 0.1
    optimizer: Optimizer = SGD()
    server_lr: Positive = 1.0

    def traits(self) -> Traits:
        return Traits(personal=True)

    def init(self, model: Model, key: Tensor) -> Tree:
        return model

    def client_state(self, model: Model) -> Tree:
        return {"own": model}

    def send(self, server: Tree) -> Tree:
        return server

    def start(self, sent: Tree, own: Tree) -> Tree:
        return {**begin(self.optimizer, own["own"]), "shared": begin(self.optimizer, sent)}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        g, shared = gradient(self.task, carry["shared"], batch)
        shared = descend(self.optimizer, shared, g, self.lr)
        g, carry = gradient(self.task, carry, batch)
        g = tree.add_scaled(g, tree.sub(carry["params"], sent["params"]), self.mu)
        return {**descend(self.optimizer, carry, g, self.lr), "shared": shared}

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        return delta_update(carry["shared"], sent, info), {"own": model_of(carry)}

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        return move(server, total.mean(), self.server_lr)
