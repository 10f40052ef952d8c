"""q-FFL, solved by q-FedAvg."""

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll import tree
from atoll.algorithms.local import (
    add_loss_at_server,
    begin,
    descend,
    difference,
    equal_weight,
    gradient,
    loss_at_server,
    move,
    no_loss_at_server,
)
from atoll.algorithms.optimizers import SGD, Optimizer
from atoll.core import Info, Model, Positive, Task, Total, Traits, Unsigned, Update
from atoll.tree import Tree

_LEAST = 1e-10  # a loss below it counts as this: it is raised to q - 1


@dataclass(frozen=True)
class QFedAvg:
    """Clients with a larger loss count more: minimise the sum of F_k^(q+1) / (q + 1) (Li et al., 2020, algorithm 2).

    With L = 1 / lr, an estimate of the Lipschitz constant for q = 0 from which that of every q follows, and
    d_k = L (w - w_k):  w <- w - sum_k F_k(w)^q d_k / sum_k (q F_k(w)^(q-1) |d_k|^2 + L F_k(w)^q).
    q = 0 is FedAvg of clients that count alike. F_k(w) is the loss of a client's examples at the server's model.
    """

    task: Task
    lr: Positive
    q: Unsigned = 1.0
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
        return {**begin(self.optimizer, sent), **no_loss_at_server(sent)}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        carry = add_loss_at_server(self.task, carry, sent, batch)
        g, carry = gradient(self.task, carry, batch)
        return descend(self.optimizer, carry, g, self.lr)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        parts, loss = difference(carry, sent), loss_at_server(carry).clamp(min=_LEAST)
        lipschitz = torch.where(torch.as_tensor(self.lr) > 0, 1.0 / self.lr, 0.0)  # a schedule may end at zero
        length = tree.norm(parts["delta"]) ** 2
        bound = self.q * loss ** (self.q - 1) * lipschitz * length + loss**self.q  # both sides divided by L
        scaled = tree.scale(parts["delta"], loss**self.q)
        return Update({**parts, "delta": scaled, "bound": bound}, equal_weight(info)), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        mean = total.mean()
        return move(server, {**mean, "delta": tree.scale(mean["delta"], 1.0 / mean["bound"])}, 1.0)
