"""pFedMe."""

from dataclasses import dataclass

from torch import Tensor

from atoll import tree
from atoll.algorithms.local import difference, equal_weight, gradient, model_of, move
from atoll.algorithms.optimizers import zero
from atoll.core import Count, Info, Model, Positive, Task, Total, Traits, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class PFedMe:
    """Models of one's own by Moreau envelopes: the shared model learns where they are near (Dinh et al., 2020).

    Own: t = argmin f_k(t) + lam/2 |t - w_k|^2, by `inner_steps` of gradient descent from w_k on the batch.
    Shared: w_k <- w_k - lr lam (w_k - t) on every batch; w <- w + server_lr * mean(w_k - w), all clients alike.
    With one inner step it is FedAvg of clients that count alike, at the rate lr lam inner_lr.
    """

    task: Task
    lr: Positive
    inner_lr: Positive = 0.1
    lam: Positive = 1.0
    inner_steps: Count = 5
    server_lr: Positive = 1.0  # beta

    def traits(self) -> Traits:
        return Traits(personal=True)

    def init(self, model: Model, key: Tensor) -> Tree:
        return model

    def client_state(self, model: Model) -> Tree:
        return {"own": model}

    def send(self, server: Tree) -> Tree:
        return server

    def start(self, sent: Tree, own: Tree) -> Tree:
        return {**model_of(own["own"]), "envelope": model_of(sent), "loss": zero(sent["params"])}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        centre = carry["envelope"]["params"]
        near = {**carry["envelope"], "loss": zero(centre)}
        for _ in range(self.inner_steps):
            g, near = gradient(self.task, near, batch)
            g = tree.add_scaled(g, tree.sub(near["params"], centre), self.lam)
            near = {**near, "params": tree.add_scaled(near["params"], g, -self.inner_lr)}
        moved = tree.add_scaled(centre, tree.sub(near["params"], centre), self.lr * self.lam)
        envelope = {"params": moved, "buffers": near["buffers"]}
        loss = carry["loss"] + near["loss"] / self.inner_steps
        return {**carry, **model_of(near), "envelope": envelope, "loss": loss}

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        return Update(difference(carry["envelope"], sent), equal_weight(info)), {"own": model_of(carry)}

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        return move(server, total.mean(), self.server_lr)
