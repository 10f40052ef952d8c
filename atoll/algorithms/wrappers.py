"""Algorithms around algorithms: what a policy or a measurement adds, without the inner one knowing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from atoll import tree
from atoll.algorithms.local import model_of
from atoll.algorithms.optimizers import zero
from atoll.core import Algorithm, Info, Model, Task, Total, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class LocalStatistics:
    """BatchNorm's statistics stay with the client (Andreux et al., 2020); weights are shared as `inner` says."""

    personal: ClassVar[bool] = True
    partial: ClassVar[bool] = True

    inner: Algorithm

    def init(self, model: Model) -> Tree:
        return self.inner.init(model)

    def memory(self, model: Model) -> Tree:
        return {"inner": self.inner.memory(model), "buffers": model["buffers"]}

    def send(self, server: Tree) -> Tree:
        return self.inner.send(server)

    def start(self, sent: Tree, memory: Tree) -> Tree:
        return {**self.inner.start(sent, memory["inner"]), "buffers": memory["buffers"]}

    def step(self, carry: Tree, sent: Tree, memory: Tree, batch: Tree) -> Tree:
        return self.inner.step(carry, sent, memory["inner"], batch)

    def finish(self, carry: Tree, sent: Tree, memory: Tree, info: Info) -> tuple[Update, Tree]:
        update, kept = self.inner.finish(carry, sent, memory["inner"], info)
        value = {k: v for k, v in update.value.items() if k != "buffers"}
        return update._replace(value=value), {"inner": kept, "buffers": carry["buffers"]}

    def apply(self, server: Tree, total: Total) -> Tree:
        value = {**total.value, "buffers": tree.zeros_like(server["buffers"])}
        return self.inner.apply(server, replace(total, value=value))


@dataclass(frozen=True)
class Statistics:
    """Re-estimate BatchNorm's statistics at a fixed model: the mean over all batches of what each one has."""

    task: Task

    def init(self, model: Model) -> Tree:
        return model

    def memory(self, model: Model) -> Tree:
        return {}

    def send(self, server: Tree) -> Tree:
        return model_of(server)

    def start(self, sent: Tree, memory: Tree) -> Tree:
        return {**model_of(sent), "sum": tree.zeros_like(sent["buffers"]), "seen": zero(sent["params"])}

    def step(self, carry: Tree, sent: Tree, memory: Tree, batch: Tree) -> Tree:
        n = batch["mask"].sum()
        found = self.task.statistics(carry["params"], carry["buffers"], batch)
        return {**carry, "sum": tree.add_scaled(carry["sum"], found, n), "seen": carry["seen"] + n}

    def finish(self, carry: Tree, sent: Tree, memory: Tree, info: Info) -> tuple[Update, Tree]:
        return Update({"buffers": tree.scale(carry["sum"], 1.0 / carry["seen"].clamp(min=1))}, carry["seen"]), memory

    def apply(self, server: Tree, total: Total) -> Tree:
        return {**server, "buffers": total.mean()["buffers"]}


@dataclass(frozen=True)
class Snapshot:
    """What each client would predict with: its model is the update, and it remembers nothing of the trial."""

    inner: Algorithm

    def init(self, model: Model) -> Tree:
        return self.inner.init(model)

    def memory(self, model: Model) -> Tree:
        return self.inner.memory(model)

    def send(self, server: Tree) -> Tree:
        return self.inner.send(server)

    def start(self, sent: Tree, memory: Tree) -> Tree:
        return self.inner.start(sent, memory)

    def step(self, carry: Tree, sent: Tree, memory: Tree, batch: Tree) -> Tree:
        return self.inner.step(carry, sent, memory, batch)

    def finish(self, carry: Tree, sent: Tree, memory: Tree, info: Info) -> tuple[Update, Tree]:
        return Update(model_of(carry), torch.ones_like(info.examples)), memory

    def apply(self, server: Tree, total: Total) -> Tree:
        return server
