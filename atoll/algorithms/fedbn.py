"""FedBN."""

from dataclasses import dataclass, field

from torch import Tensor

from atoll.algorithms.local import begin, descend, gradient, move
from atoll.algorithms.optimizers import SGD, Optimizer
from atoll.algorithms.partial_sharing import client_part, complete, joined, known, shared_change
from atoll.core import Info, Model, Positive, Task, Total, Traits, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class FedBN:
    """Normalisation layers stay with the client, the rest is FedAvg (Li et al., 2021).

    `keep` names other parameters to keep; without it the model needs a normalisation layer.
    """

    task: Task
    lr: Positive
    keep: list[str] = field(default_factory=list)
    optimizer: Optimizer = SGD()
    server_lr: Positive = 1.0

    def traits(self) -> Traits:
        return Traits(personal=True, partial=True)

    def init(self, model: Model, key: Tensor) -> Tree:
        return model

    def client_state(self, model: Model) -> Tree:
        return client_part(known(model, self.keep), self._kept)

    def send(self, server: Tree) -> Tree:
        return server

    def start(self, sent: Tree, own: Tree) -> Tree:
        return begin(self.optimizer, joined(sent, own))

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        g, carry = gradient(self.task, carry, batch)
        return descend(self.optimizer, carry, g, self.lr)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        return shared_change(carry, sent, self._kept, info), client_part(carry, self._kept)

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        return move(server, complete(total.mean(), server), self.server_lr)

    @property
    def _kept(self) -> tuple[str, ...]:
        return tuple(self.keep) or self.task.names("norm")
