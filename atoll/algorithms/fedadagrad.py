"""FedAdagrad."""

from dataclasses import dataclass

from torch import Tensor

from atoll import tree
from atoll.algorithms.local import begin, change, descend, gradient, move
from atoll.algorithms.optimizers import SGD, Optimizer
from atoll.core import Info, Model, Positive, Task, Total, Traits, Update
from atoll.core.settings import Fraction
from atoll.tree import Tree


@dataclass(frozen=True)
class FedAdagrad:
    """Adagrad on the server, with the mean change D as its direction (Reddi et al., 2021).

    m <- b1 m + (1 - b1) D;  v <- v + D^2;  w <- w + server_lr * m / (sqrt(v) + tau);  v starts at tau^2
    """

    task: Task
    lr: Positive
    server_lr: Positive = 0.01
    b1: Fraction = 0.0
    tau: Positive = 1e-3
    optimizer: Optimizer = SGD()

    def traits(self) -> Traits:
        return Traits()

    def init(self, model: Model, key: Tensor) -> Tree:
        v = tree.map(lambda p: 0 * p + self.tau**2, model["params"])
        return {**model, "m": tree.zeros_like(model["params"]), "v": v}

    def client_state(self, model: Model) -> Tree:
        return {}

    def send(self, server: Tree) -> Tree:
        return {"params": server["params"], "buffers": server["buffers"]}

    def start(self, sent: Tree, own: Tree) -> Tree:
        return begin(self.optimizer, sent)

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        g, carry = gradient(self.task, carry, batch)
        return descend(self.optimizer, carry, g, self.lr)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        return change(carry, sent, info), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        mean = total.mean()
        m = tree.map(lambda m, d: self.b1 * m + (1 - self.b1) * d, server["m"], mean["delta"])
        v = tree.map(lambda v, d: v + d * d, server["v"], mean["delta"])
        direction = tree.map(lambda m, v: m / (v.sqrt() + self.tau), m, v)
        return {**move(server, {**mean, "delta": direction}, self.server_lr), "m": m, "v": v}
