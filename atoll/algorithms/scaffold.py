"""SCAFFOLD, as its paper has it. What published code made of it stands in `published.py`."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from atoll import tree
from atoll.algorithms.local import begin, descend, difference, equal_weight, gradient, model_of, move
from atoll.algorithms.optimizers import SGD, EffectiveSteps, Optimizer, linear, zero
from atoll.core import Info, Model, Positive, Task, Total, Traits, Update
from atoll.errors import ConfigError
from atoll.tree import Tree


@dataclass(frozen=True)
class Scaffold:
    """Control variates against client drift (Karimireddy et al., 2020).

    Local step: g - c_i + c, all controls zero at first.
    Option I:  c_i+ = the gradient of all local examples (that the steps read) at the server's model x.
    Option II: c_i+ = c_i - c + (x - y_i) / (K lr), with K the gradients the change is worth (steps, for plain SGD).
    Server: x += server_lr * mean(y_i - x);  c += |S|/N * mean(c_i+ - c_i).
    """

    task: Task
    lr: Positive
    population: int
    option: Literal["I", "II"] = "II"
    optimizer: Optimizer = SGD()
    server_lr: Positive = 1.0

    def __post_init__(self) -> None:
        if self.option == "II":
            check_adds_up(self.optimizer)

    def traits(self) -> Traits:
        return Traits(counts_clients=True)

    def init(self, model: Model, key: Tensor) -> Tree:
        return {**model, "control": tree.zeros_like(model["params"])}

    def client_state(self, model: Model) -> Tree:
        return {"control": tree.zeros_like(model["params"])}

    def send(self, server: Tree) -> Tree:
        return server

    def start(self, sent: Tree, own: Tree) -> Tree:
        carry = begin(self.optimizer, sent)
        if self.option == "I":
            return {**carry, "at_server": tree.zeros_like(sent["params"]), "seen": zero(sent["params"])}
        return {**carry, "effective": EffectiveSteps(self.optimizer).init(sent["params"])}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        if self.option == "I":
            carry = self._add_gradient_at_server(carry, sent, batch)
        else:
            carry = {**carry, "effective": EffectiveSteps(self.optimizer).add(carry["effective"])}
        g, carry = gradient(self.task, carry, batch)
        correction = tree.sub(sent["control"], own["control"])
        return descend(self.optimizer, carry, tree.add(g, correction), self.lr)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        parts = difference(carry, sent)
        if self.option == "I":
            control = tree.scale(carry["at_server"], 1.0 / carry["seen"])
        else:
            control = control_from_delta(parts["delta"], carry["effective"]["steps"] * self.lr, sent, own)
        parts = {**parts, "control": tree.sub(control, own["control"])}
        return Update(parts, equal_weight(info)), {"control": control}

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        mean, share = total.mean(), total.count / self.population
        control = tree.add_scaled(server["control"], mean["control"], share)
        return {**move(server, mean, self.server_lr), "control": control}

    def _add_gradient_at_server(self, carry: Tree, sent: Tree, batch: Tree) -> Tree:
        g, _ = gradient(self.task, {**model_of(sent), "loss": carry["loss"]}, batch)
        n = batch["mask"].sum()
        return {**carry, "at_server": tree.add_scaled(carry["at_server"], g, n), "seen": carry["seen"] + n}


def control_from_delta(delta: Tree, rate: Tensor, sent: Tree, own: Tree) -> Tree:
    """Option II: the mean gradient along the way, read from the change; `rate` is K lr."""
    moved = rate > 0  # a schedule may end at zero: who does not move learns nothing of its gradient
    mean = tree.scale(delta, -1.0 / torch.where(moved, rate, 1.0))
    control = tree.add(tree.sub(own["control"], sent["control"]), mean)
    return tree.where(moved, control, own["control"])


def check_adds_up(optimizer: Optimizer) -> None:
    """Option II takes the change for a sum of gradients."""
    if linear(optimizer) is None:
        raise ConfigError(
            "algorithm.optimizer: SCAFFOLD's option II reads the mean gradient from the change, which Adam "
            "does not allow. Use optimizer = 'sgd', or option = 'I'."
        )
