"""SCAFFOLD as two published packages run it, mistakes included: named, so that their figures can be explained."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from atoll import tree
from atoll.algorithms.local import begin, descend, difference, equal_weight, gradient, move
from atoll.algorithms.optimizers import PLAIN_SGD, SGD, EffectiveSteps, Optimizer
from atoll.algorithms.scaffold import Scaffold, check_adds_up, control_from_delta
from atoll.core import Algorithm, Info, Model, Positive, Task, Total, Traits, Update
from atoll.errors import ConfigError
from atoll.tree import Tree


def scaffold(
    task: Task,
    lr: Positive,
    population: int,
    option: Literal["I", "II"] = "II",
    optimizer: Optimizer = PLAIN_SGD,
    server_lr: Positive = 1.0,
    profile: Literal["paper", "niid-bench", "pfl-research"] = "paper",
) -> Algorithm:
    """Control variates against client drift (Karimireddy et al., 2020).

    The profile is the paper's `Scaffold`, or a published mistake: `NiidBenchScaffold`, `PflResearchScaffold`.
    """
    if profile == "niid-bench":
        if option == "I":
            raise ConfigError(
                "algorithm.option: the profile 'niid-bench' is a form of option II. Leave the option out."
            )
        return NiidBenchScaffold(task, lr, population, optimizer, server_lr)
    paper = Scaffold(task, lr, population, option, optimizer, server_lr)
    return PflResearchScaffold(paper) if profile == "pfl-research" else paper


@dataclass(frozen=True)
class NiidBenchScaffold:
    """What the code behind NIID-Bench's published figures does, a form of option II.

    The optimizer steps with g alone, then y -= lr (c - c_i), outside of the momentum. K is the number of steps even
    with momentum, so that at 0.9 the controls come out up to ten times too large. Models are averaged by examples,
    controls are not. Its controls start from one random network, which cancels as long as everybody takes part: here
    they start at zero. Without momentum and with clients of one size it is option II.
    """

    task: Task
    lr: Positive
    population: int
    optimizer: Optimizer = SGD()
    server_lr: Positive = 1.0

    def __post_init__(self) -> None:
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
        return {**begin(self.optimizer, sent), "counted": EffectiveSteps(SGD()).init(sent["params"])}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        carry = {**carry, "counted": EffectiveSteps(SGD()).add(carry["counted"])}
        g, carry = gradient(self.task, carry, batch)
        carry = descend(self.optimizer, carry, g, self.lr)
        correction = tree.sub(sent["control"], own["control"])
        return {**carry, "params": tree.add_scaled(carry["params"], correction, -self.lr)}

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        parts = difference(carry, sent)
        control = control_from_delta(parts["delta"], carry["counted"]["steps"] * self.lr, sent, own)
        # two weights in one sum: a client counts once, its model n_i times
        model = {**tree.scale(parts, info.examples), "examples": info.examples}
        return Update({**model, "control": tree.sub(control, own["control"])}, equal_weight(info)), {"control": control}

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        mean, share = total.mean(), total.count / self.population
        control = tree.add_scaled(server["control"], mean["control"], share)
        model = tree.scale({"delta": mean["delta"], "buffers": mean["buffers"]}, 1.0 / mean["examples"])
        return {**move(server, model, self.server_lr), "control": control}


@dataclass(frozen=True)
class PflResearchScaffold:
    """pfl-research has the sign of its controls wrong: the step is g + c_i - c, away from what the others want.

    Its benchmarks use option I. (With option II that sign doubles c_i - c at every turn.)
    """

    inner: Scaffold

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
        """Both controls change places, so that their difference has the other sign."""
        swapped = {**sent, "control": own["control"]}, {**own, "control": sent["control"]}
        return self.inner.step(carry, *swapped, batch)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        return self.inner.finish(carry, sent, own, info)

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        return self.inner.apply(server, total, key)
