"""FedDyn."""

from dataclasses import dataclass

from torch import Tensor

from atoll import tree
from atoll.algorithms.local import begin, check_divisor, descend, difference, equal_weight, gradient, move
from atoll.algorithms.optimizers import SGD, Optimizer
from atoll.core import Info, Model, Positive, Task, Total, Traits, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class FedDyn:
    """A dynamic regulariser that makes the clients' optima agree with the server's (Acar et al., 2021).

    Local loss: L_i(w) - <h_i, w> + alpha/2 |w - x|^2;  h_i <- h_i - alpha (w_i - x).
    Server: h <- h - alpha |S|/N mean(w_i - x);  x <- mean(w_i) - h / alpha.
    """

    task: Task
    lr: Positive
    population: int
    alpha: Positive = 0.01
    optimizer: Optimizer = SGD()

    def __post_init__(self) -> None:
        check_divisor("alpha", self.alpha)

    def traits(self) -> Traits:
        return Traits(counts_clients=True)

    def init(self, model: Model, key: Tensor) -> Tree:
        return {**model, "h": tree.zeros_like(model["params"])}

    def client_state(self, model: Model) -> Tree:
        return {"h": tree.zeros_like(model["params"])}

    def send(self, server: Tree) -> Tree:
        return {"params": server["params"], "buffers": server["buffers"]}

    def start(self, sent: Tree, own: Tree) -> Tree:
        return begin(self.optimizer, sent)

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        g, carry = gradient(self.task, carry, batch)
        pull = tree.sub(carry["params"], sent["params"])
        g = tree.add_scaled(tree.sub(g, own["h"]), pull, self.alpha)
        return descend(self.optimizer, carry, g, self.lr)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        parts = difference(carry, sent)
        return Update(parts, equal_weight(info)), {"h": tree.add_scaled(own["h"], parts["delta"], -self.alpha)}

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        mean, share = total.mean(), total.count / self.population
        h = tree.add_scaled(server["h"], mean["delta"], -self.alpha * share)
        return {**move(server, {**mean, "delta": tree.add_scaled(mean["delta"], h, -1.0 / self.alpha)}, 1.0), "h": h}
