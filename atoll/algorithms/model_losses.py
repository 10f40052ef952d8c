"""Which of several models fits a client best: what each one loses on the client's own examples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll import tree
from atoll.algorithms.local import model_of
from atoll.core import Algorithm, Info, Model, Task, Total, Traits, Update
from atoll.errors import ConfigError
from atoll.tree import Tree

_NOT_FINITE = 1e30  # the loss of a model that has diverged: nobody chooses it


@dataclass(frozen=True)
class ModelLosses:
    """An algorithm around another: nothing is learned, the update is the mean loss of every model that was sent.

    What is sent has one more axis: a row for each of K servers. Models run as when they predict. Where a part of the
    model stays with the client, each is measured with that part.
    """

    inner: Algorithm
    task: Task

    def traits(self) -> Traits:
        return self.inner.traits()

    def init(self, model: Model, key: Tensor) -> Tree:
        return self.inner.init(model, key)

    def client_state(self, model: Model) -> Tree:
        return self.inner.client_state(model)

    def send(self, server: Tree) -> Tree:
        return self.inner.send(server)

    def start(self, sent: Tree, own: Tree) -> Tree:
        losses = torch.zeros_like(_losses_like(sent))
        return {"losses": losses, "seen": losses.sum()}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        sums = []
        for k in range(len(carry["losses"])):
            model = self._model(tree.rows(sent, k), own)
            columns = self.task.measure(model["params"], model["buffers"], batch)
            if "loss" not in columns:
                raise ConfigError(
                    "round.name: clients choose a model by the loss of their examples, and this loss has no value "
                    "for single ones. Use round.name = 'clustered_fl', or a loss of single examples."
                )
            sums.append(columns["loss"].sum())
        losses = carry["losses"] + torch.stack(sums)
        return {**carry, "losses": losses, "seen": carry["seen"] + columns["weight"].sum()}

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        losses = carry["losses"] / torch.where(carry["seen"] > 0, carry["seen"], 1.0)
        losses = torch.where(torch.isfinite(losses), losses, _NOT_FINITE)
        return Update({"losses": losses}, torch.ones_like(info.examples)), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        return server

    def _model(self, sent: Tree, own: Tree) -> Model:
        """The shared model; joined with what stays with the client, where something does."""
        return model_of(self.inner.start(sent, own) if self.inner.traits().partial else sent)


def _losses_like(sent: Tree) -> Tensor:
    leaf = tree.leaves(sent["params"])[0]
    return leaf.reshape(len(leaf), -1)[:, 0]
