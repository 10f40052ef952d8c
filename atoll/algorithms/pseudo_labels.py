"""Semi-supervised: some clients have labels, the others believe the server's model where it is sure."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from atoll import tree
from atoll.algorithms.local import begin, delta_update, descend, gradient, model_of, move, row_noise
from atoll.algorithms.optimizers import SGD, Optimizer, zero
from atoll.core import ClientGroups, Info, Model, Positive, Share, Task, Total, Traits, Unsigned, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class PseudoLabels:
    """FedAvg in which a share of the clients has labels: FixMatch in little (Sohn et al., 2020; Diao et al., 2022).

    A client without labels takes, of every batch, the examples of which the server's model is sure (its largest
    probability is at least `threshold`), calls them what that model does, and trains on them with normal `noise` on
    the inputs: consistency between a clean and a noisy view. Its examples count `unlabelled_weight` times. With
    labelled = 1 it is FedAvg.
    """

    task: Task
    lr: Positive
    labelled: Annotated[float, Field(gt=0, le=1)] = 0.2
    threshold: Share = 0.9
    noise: Unsigned = 0.1
    unlabelled_weight: Unsigned = 1.0
    optimizer: Optimizer = SGD()
    server_lr: Positive = 1.0

    def traits(self) -> Traits:
        groups = None if self.labelled == 1.0 else ClientGroups((self.labelled, 1.0 - self.labelled))
        return Traits(groups=groups, draws=self.labelled < 1.0)

    def init(self, model: Model, key: Tensor) -> Tree:
        return model

    def client_state(self, model: Model) -> Tree:
        return {}

    def send(self, server: Tree) -> Tree:
        return {**model_of(server), "group": zero(server["params"])}

    def start(self, sent: Tree, own: Tree) -> Tree:
        return {**begin(self.optimizer, sent), "used": zero(sent["params"]), "seen": zero(sent["params"])}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        batch = batch if self.labelled == 1.0 else self._believed(sent, batch)
        used, seen = batch["mask"].sum(), (batch["mask"] >= 0).sum()
        g, carry = gradient(self.task, carry, batch)
        carry = {**carry, "used": carry["used"] + used, "seen": carry["seen"] + seen}
        return descend(self.optimizer, carry, tree.scale(g, (used > 0).to(used.dtype)), self.lr)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        update = delta_update(carry, sent, info)
        if self.labelled == 1.0:
            return update, own
        sure = torch.where(carry["used"] > 0, self.unlabelled_weight, 0.0)
        return update._replace(weight=update.weight * torch.where(sent["group"] > 0, sure, 1.0)), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        return move(server, total.mean(), self.server_lr)

    def _believed(self, sent: Tree, batch: Tree) -> Tree:
        """The batch as it is for who has labels; for the others with the server's, where it is sure, and noise."""
        shares = self.task.logits(sent["params"], sent["buffers"], batch, training=False).softmax(-1)
        sure, called = shares.max(-1)
        without = sent["group"] > 0
        drawn = row_noise(batch, 11, tuple(batch["x"].shape[1:])).to(batch["x"])
        return {
            **batch,
            "x": torch.where(without, batch["x"] + self.noise * drawn, batch["x"]),
            "y": torch.where(without, called.to(batch["y"].dtype), batch["y"]),
            "mask": batch["mask"] * torch.where(without, (sure >= self.threshold).to(batch["mask"]), 1.0),
        }
