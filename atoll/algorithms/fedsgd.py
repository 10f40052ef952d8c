"""FedSGD."""

from dataclasses import dataclass

from torch import Tensor

from atoll import tree
from atoll.algorithms.local import gradient, model_of, renewed
from atoll.algorithms.optimizers import zero
from atoll.core import Info, Model, Positive, Task, Total, Traits, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class FedSGD:
    """One gradient of all the cohort's examples per round (McMahan et al., 2017).

    w <- w - lr * sum_k n_k grad F_k(w) / n. Batches only cut the work: the result does not depend on their size. Where
    `local.max_steps` cuts it short, grad F_k is estimated from the rows that were read.
    """

    task: Task
    lr: Positive

    def traits(self) -> Traits:
        return Traits()

    def init(self, model: Model, key: Tensor) -> Tree:
        return model

    def client_state(self, model: Model) -> Tree:
        return {}

    def send(self, server: Tree) -> Tree:
        return server

    def start(self, sent: Tree, own: Tree) -> Tree:
        none = zero(sent["params"])
        return {**model_of(sent), "gradient": tree.zeros_like(sent["params"]), "seen": none, "loss": none}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        g, carry = gradient(self.task, carry, batch)
        n = batch["mask"].sum()
        return {**carry, "gradient": tree.add_scaled(carry["gradient"], g, n), "seen": carry["seen"] + n}

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        mean = tree.scale(carry["gradient"], 1.0 / carry["seen"])
        buffers = tree.sub(carry["buffers"], sent["buffers"])
        return Update({"gradient": mean, "buffers": buffers}, info.examples), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        mean = total.mean()
        return {
            "params": tree.add_scaled(server["params"], mean["gradient"], -self.lr),
            "buffers": renewed(server["buffers"], mean["buffers"]),
        }
