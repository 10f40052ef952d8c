"""SCAFFOLD."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from atoll import tree
from atoll.algorithms.local import begin, descend, difference, gradient, model_of, move, one
from atoll.algorithms.optimizers import SGD, Optimizer, count_gradients, linear, worth, zero
from atoll.core import Info, Model, Positive, Task, Total, Traits, Update
from atoll.errors import ConfigError
from atoll.tree import Tree


@dataclass(frozen=True)
class Scaffold:
    """Control variates against client drift (Karimireddy et al., 2020).

    Local step: g - c_i + c, all controls zero at first.
    Option I:  c_i+ = the gradient of all local examples at the server's model x.
    Option II: c_i+ = c_i - c + (x - y_i) / (K lr), with K the gradients the change is worth (steps, for plain SGD).
    Server: x += server_lr * mean(y_i - x);  c += |S|/N * mean(c_i+ - c_i).

    `profile = "niid-bench"` is what the code behind NIID-Bench's published figures does, a form of option II: the
    optimizer steps with g alone, then y -= lr (c - c_i), outside of the momentum; K is the number of steps even with
    momentum, so that at 0.9 the controls come out up to ten times too large; models are averaged by examples, controls
    are not. Its controls start from one random network, which cancels as long as everybody takes part: here they
    start at zero. Without momentum and with clients of one size it is option II.

    `profile = "pfl-research"` has the sign of its controls wrong, as that package has it: the step is g + c_i - c, away
    from what the others want. Its benchmarks use option I. (With option II that sign doubles c_i - c at every turn.)
    """

    task: Task
    lr: Positive
    population: int
    option: Literal["I", "II"] = "II"
    optimizer: Optimizer = SGD()
    server_lr: Positive = 1.0
    profile: Literal["paper", "niid-bench", "pfl-research"] = "paper"

    def __post_init__(self) -> None:
        if self.option == "II" and linear(self.optimizer) is None:
            raise ConfigError(
                "algorithm.optimizer: SCAFFOLD's option II reads the mean gradient from the change, which Adam "
                "does not allow. Use optimizer = 'sgd', or option = 'I'."
            )
        if self.option == "I" and self.profile == "niid-bench":
            raise ConfigError(
                "algorithm.option: the profile 'niid-bench' is a form of option II. Leave the option out."
            )

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
        return {**carry, "worth": worth(self._counted(), sent["params"])}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        if self.option == "I":
            there, _ = gradient(self.task, {**model_of(sent), "loss": carry["loss"]}, batch)
            n = batch["mask"].sum()
            at_server = tree.add_scaled(carry["at_server"], there, n)
            carry = {**carry, "at_server": at_server, "seen": carry["seen"] + n}
        else:
            carry = {**carry, "worth": count_gradients(self._counted(), carry["worth"])}
        g, carry = gradient(self.task, carry, batch)
        away = tree.sub(sent["control"], own["control"])
        if self.profile == "niid-bench":
            carry = descend(self.optimizer, carry, g, self.lr)
            return {**carry, "params": tree.add_scaled(carry["params"], away, -self.lr)}
        sign = -1.0 if self.profile == "pfl-research" else 1.0
        return descend(self.optimizer, carry, tree.add_scaled(g, away, sign), self.lr)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        parts = difference(carry, sent)
        if self.option == "I":
            new = tree.scale(carry["at_server"], 1.0 / carry["seen"])
        else:
            rate = carry["worth"]["gradients"] * self.lr
            moved = rate > 0  # a schedule may end at zero: who does not move learns nothing of its gradient
            mean = tree.scale(parts["delta"], -1.0 / torch.where(moved, rate, 1.0))
            new = tree.add(tree.sub(own["control"], sent["control"]), mean)
            new = tree.where(moved, new, own["control"])
        if self.profile == "niid-bench":  # two weights in one sum: a client counts once, its model n_i times
            parts = {**tree.scale(parts, info.examples), "examples": info.examples}
        return Update({**parts, "control": tree.sub(new, own["control"])}, one(info)), {"control": new}

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        mean, share = total.mean(), total.count / self.population
        control = tree.add_scaled(server["control"], mean["control"], share)
        if self.profile == "niid-bench":
            model = {"delta": mean["delta"], "buffers": mean["buffers"]}
            mean = tree.scale(model, 1.0 / mean["examples"])
        return {**move(server, mean, self.server_lr), "control": control}

    def _counted(self) -> Optimizer:
        """What K is counted with: the published code counts steps, whatever momentum makes of them."""
        return SGD() if self.profile == "niid-bench" else self.optimizer
