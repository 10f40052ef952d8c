"""MimeLite."""

from dataclasses import dataclass

from torch import Tensor

from atoll import tree
from atoll.algorithms.local import begin, descend, difference, equal_weight, gradient, model_of, move
from atoll.algorithms.optimizers import SGD, zero
from atoll.core import Fraction, Info, Model, Positive, Task, Total, Traits, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class MimeLite:
    """Clients mimic a server's momentum: it is sent, fixed while they train, and renewed by the server alone.

    Local step: w_k <- w_k - lr ((1 - momentum) g + momentum m). Server: w <- w + server_lr * mean(w_k - w) and
    m <- (1 - momentum) mean(grad f_k(w)) + momentum m, with the gradient of all local examples (that the steps read) at
    the server's model. Clients count alike (Karimireddy et al., 2020: MimeLite with SGD and momentum; Mime itself also
    corrects the local gradients, which is SCAFFOLD's idea and left out of the "lite" one).
    """

    task: Task
    lr: Positive
    momentum: Fraction = 0.9
    server_lr: Positive = 1.0

    def traits(self) -> Traits:
        return Traits()

    def init(self, model: Model, key: Tensor) -> Tree:
        return {**model, "momentum": tree.zeros_like(model["params"])}

    def client_state(self, model: Model) -> Tree:
        return {}

    def send(self, server: Tree) -> Tree:
        return server

    def start(self, sent: Tree, own: Tree) -> Tree:
        return {**begin(SGD(), sent), "at_server": tree.zeros_like(sent["params"]), "seen": zero(sent["params"])}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        n = batch["mask"].sum()
        there, _ = gradient(self.task, {**model_of(sent), "loss": carry["loss"]}, batch)
        carry = {**carry, "at_server": tree.add_scaled(carry["at_server"], there, n), "seen": carry["seen"] + n}
        g, carry = gradient(self.task, carry, batch)
        mixed = tree.add_scaled(tree.scale(g, 1 - self.momentum), sent["momentum"], self.momentum)
        return descend(SGD(), carry, mixed, self.lr)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        at_server = tree.scale(carry["at_server"], 1.0 / carry["seen"].clamp(min=1))
        return Update({**difference(carry, sent), "gradient": at_server}, equal_weight(info)), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        mean = total.mean()
        old = tree.scale(server["momentum"], self.momentum)
        momentum = tree.add_scaled(old, mean["gradient"], 1 - self.momentum)
        return {**move(server, mean, self.server_lr), "momentum": momentum}
