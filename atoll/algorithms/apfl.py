"""APFL."""

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll import tree
from atoll.algorithms.local import begin, delta_update, descend, gradient, move
from atoll.algorithms.optimizers import SGD, Optimizer, zero
from atoll.core import Info, Model, Positive, Proportion, Task, Total, Traits, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class APFL:
    """Every client predicts with a mixture of a model of its own and the shared one (Deng et al., 2020).

    Mixed: m = a v + (1 - a) w_k. Shared: FedAvg of w_k. Own: v <- v - lr a grad F_k(m), kept by the client, never sent.
    Adaptive: a <- a - lr <grad F_k(m), v - w_k> on the first batch of a round, kept between 0 and 1.
    """

    task: Task
    lr: Positive
    alpha: Proportion = 0.5  # of its own model in every client's first mixture
    adaptive: bool = True
    optimizer: Optimizer = SGD()
    server_lr: Positive = 1.0

    def traits(self) -> Traits:
        return Traits(personal=True)

    def init(self, model: Model, key: Tensor) -> Tree:
        return model

    def client_state(self, model: Model) -> Tree:
        alpha = zero(model["params"]) + self.alpha
        return {"own": model["params"], "buffers": model["buffers"], "alpha": alpha}

    def send(self, server: Tree) -> Tree:
        return server

    def start(self, sent: Tree, own: Tree) -> Tree:
        mixed = {"params": _mixed(own["own"], sent["params"], own["alpha"]), "buffers": own["buffers"]}
        more = {"own": own["own"], "alpha": own["alpha"], "batches": zero(sent["params"])}
        return {**begin(self.optimizer, mixed), **more, "shared": begin(self.optimizer, sent)}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        g, shared = gradient(self.task, carry["shared"], batch)
        g_mixed, carry = gradient(self.task, carry, batch)
        alpha = self._adapted(carry, shared["params"], g_mixed) if self.adaptive else carry["alpha"]
        shared = descend(self.optimizer, shared, g, self.lr)
        mine, opt = self.optimizer.step(carry["own"], tree.scale(g_mixed, alpha), carry["opt"], self.lr)
        params = _mixed(mine, shared["params"], alpha)
        new = {"params": params, "own": mine, "opt": opt, "alpha": alpha, "batches": carry["batches"] + 1}
        return {**carry, **new, "shared": shared}

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        kept = {"own": carry["own"], "buffers": carry["buffers"], "alpha": carry["alpha"]}
        return delta_update(carry["shared"], sent, info), kept

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        return move(server, total.mean(), self.server_lr)

    def _adapted(self, carry: Tree, shared: Tree, g: Tree) -> Tensor:
        """A step of the share against the loss of the mixture; once a round."""
        along = tree.dot(g, tree.sub(carry["own"], shared)).to(carry["alpha"].dtype)
        moved = (carry["alpha"] - self.lr * along).clamp(0.0, 1.0)
        return torch.where(carry["batches"] < 1, moved, carry["alpha"])


def _mixed(own: Tree, shared: Tree, alpha: Tensor) -> Tree:
    return tree.add_scaled(shared, tree.sub(own, shared), alpha)
