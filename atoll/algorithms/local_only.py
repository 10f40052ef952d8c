"""Local-only training."""

from dataclasses import dataclass

from torch import Tensor

from atoll.algorithms.local import begin, descend, gradient, model_of
from atoll.algorithms.optimizers import SGD, Optimizer
from atoll.core import Info, Model, Positive, Task, Total, Traits, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class LocalOnly:
    """Each client alone: nothing is sent, everyone goes on from its own model. The baseline that FL must beat."""

    task: Task
    lr: Positive
    optimizer: Optimizer = SGD()

    def traits(self) -> Traits:
        return Traits(personal=True, partial=True)

    def init(self, model: Model, key: Tensor) -> Tree:
        return model

    def client_state(self, model: Model) -> Tree:
        return {**model, "opt": self.optimizer.init(model["params"])}

    def send(self, server: Tree) -> Tree:
        return {}

    def start(self, sent: Tree, own: Tree) -> Tree:
        return {**begin(self.optimizer, own), "opt": own["opt"]}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        g, carry = gradient(self.task, carry, batch)
        return descend(self.optimizer, carry, g, self.lr)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        return Update({}, info.examples), {**model_of(carry), "opt": carry["opt"]}

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        return server
