"""FedProx with a mu that follows the loss."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from atoll import tree
from atoll.algorithms.local import begin, descend, difference, gradient, move
from atoll.algorithms.optimizers import SGD, Optimizer, zero
from atoll.core import Info, Model, Positive, Task, Total, Traits, Unsigned, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class AdaFedProx:
    """FedProx; mu goes up when the training loss rises and down when it has fallen `patience` rounds in a row.

    The heuristic of Li et al. (2020, appendix C.3.3), which pfl-research calls AdaFedProx. After a reduction the rounds
    are counted anew, and the first round is no fall (pfl-research: every further fall reduces, and the first round is
    one). mu stays below `most`: a noisy loss rises in every other round, and above a rate of 2 / mu the pull back
    overshoots and training diverges.
    """

    task: Task
    lr: Positive
    mu: Unsigned = 0.0
    change: Positive = 0.1
    patience: Annotated[int, Field(ge=1)] = 5
    most: Unsigned = 1.0
    optimizer: Optimizer = SGD()
    server_lr: Positive = 1.0

    def traits(self) -> Traits:
        return Traits(adapts=("mu",))

    def init(self, model: Model, key: Tensor) -> Tree:
        none = zero(model["params"])
        return {**model, "mu": none + self.mu, "loss": none + torch.inf, "falls": none}

    def client_state(self, model: Model) -> Tree:
        return {}

    def send(self, server: Tree) -> Tree:
        return {"params": server["params"], "buffers": server["buffers"], "mu": server["mu"]}

    def start(self, sent: Tree, own: Tree) -> Tree:
        return begin(self.optimizer, sent)

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        g, carry = gradient(self.task, carry, batch)
        g = tree.add_scaled(g, tree.sub(carry["params"], sent["params"]), sent["mu"])
        return descend(self.optimizer, carry, g, self.lr)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        return Update({**difference(carry, sent), "loss": carry["loss"] / info.steps}, info.examples), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        mean = total.mean()
        fell = (mean["loss"] < server["loss"]) & torch.isfinite(server["loss"])  # the first round has nothing before it
        falls = torch.where(fell, server["falls"] + 1, 0.0)
        calm, rose = falls >= self.patience, mean["loss"] > server["loss"]
        mu = server["mu"] + torch.where(rose, self.change, torch.where(calm, -self.change, 0.0))
        adapted = {
            "mu": torch.where(mu > self.most, self.most, mu.clamp(min=0)),
            "loss": mean["loss"],
            "falls": torch.where(calm, 0.0, falls),
        }
        return {**move(server, mean, self.server_lr), **adapted}
