"""Algorithms around algorithms: what a policy or a measurement adds, without the inner one knowing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atoll import tree
from atoll.algorithms.local import model_of
from atoll.algorithms.optimizers import zero
from atoll.core import Algorithm, Info, Model, Task, Total, Traits, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class LocalStatistics:
    """BatchNorm's statistics stay with the client (Andreux et al., 2020); weights are shared as `inner` says."""

    inner: Algorithm

    def traits(self) -> Traits:
        return replace(self.inner.traits(), personal=True, partial=True)

    def init(self, model: Model, key: Tensor) -> Tree:
        return self.inner.init(model, key)

    def client_state(self, model: Model) -> Tree:
        return {"inner": self.inner.client_state(model), "buffers": model["buffers"]}

    def send(self, server: Tree) -> Tree:
        return self.inner.send(server)

    def start(self, sent: Tree, own: Tree) -> Tree:
        return {**self.inner.start(sent, own["inner"]), "buffers": own["buffers"]}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        return self.inner.step(carry, sent, own["inner"], batch)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        update, kept = self.inner.finish(carry, sent, own["inner"], info)
        value = {k: v for k, v in update.value.items() if k != "buffers"}
        return update._replace(value=value), {"inner": kept, "buffers": carry["buffers"]}

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        value = {**total.value, "buffers": tree.zeros_like(server["buffers"])}
        return self.inner.apply(server, replace(total, value=value), key)


def keep_statistics_local(algorithm: Algorithm) -> Algorithm:
    """`LocalStatistics`, unless all data is in one place: the statistics of the one client are the server's then."""
    return algorithm if algorithm.traits().pooled else LocalStatistics(algorithm)


@dataclass(frozen=True)
class Statistics:
    """Re-estimate BatchNorm's statistics at a fixed model: those of all the cohort's examples, as of one batch."""

    task: Task

    def traits(self) -> Traits:
        return Traits()

    def init(self, model: Model, key: Tensor) -> Tree:
        return model

    def client_state(self, model: Model) -> Tree:
        return {}

    def send(self, server: Tree) -> Tree:
        return model_of(server)

    def start(self, sent: Tree, own: Tree) -> Tree:
        none = tree.scale(tree.zeros_like(sent["buffers"]), 0.0)  # a counter's mean is no whole number
        return {**model_of(sent), "sum": none, "seen": zero(sent["params"])}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        n = batch["mask"].sum()
        found = self.task.statistics(carry["params"], carry["buffers"], batch)
        return {**carry, "sum": tree.add_scaled(carry["sum"], found, n), "seen": carry["seen"] + n}

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        return Update({"buffers": tree.scale(carry["sum"], 1.0 / carry["seen"].clamp(min=1))}, carry["seen"]), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        buffers = self.task.renewed_buffers(total.mean()["buffers"], server["buffers"], total.weight)
        return {**server, "buffers": buffers}


@dataclass(frozen=True)
class Snapshot:
    """What each client would predict with: its model is the update, and it remembers nothing of the trial."""

    inner: Algorithm

    def traits(self) -> Traits:
        return self.inner.traits()

    def init(self, model: Model, key: Tensor) -> Tree:
        return self.inner.init(model, key)

    def client_state(self, model: Model) -> Tree:
        return self.inner.client_state(model)

    def send(self, server: Tree) -> Tree:
        return self.inner.send(server)

    def start(self, sent: Tree, own: Tree) -> Tree:
        return self.inner.start(sent, own)

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        return self.inner.step(carry, sent, own, batch)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        return Update(model_of(carry), torch.ones_like(info.examples)), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        return server
