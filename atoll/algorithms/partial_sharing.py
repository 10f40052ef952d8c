"""FedPer and FedBN: a part of the model stays with the client."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from atoll import tree
from atoll.algorithms.local import begin, descend, difference, gradient, model_of, move
from atoll.algorithms.optimizers import PLAIN_SGD, SGD, Optimizer
from atoll.core import Info, Model, Positive, Task, Total, Traits, Update
from atoll.errors import ConfigError
from atoll.tree import Tree


@dataclass(frozen=True)
class PartialSharing:
    """FedAvg of everything but the parameters that stay: those named in `keep`, or else the usual `part`."""

    task: Task
    lr: Positive
    part: Literal["head", "norm"]
    keep: tuple[str, ...] = ()
    optimizer: Optimizer = SGD()
    server_lr: Positive = 1.0

    def traits(self) -> Traits:
        return Traits(personal=True, partial=True)

    def init(self, model: Model, key: Tensor) -> Tree:
        return model

    def client_state(self, model: Model) -> Tree:
        check_known(model, self.keep)
        return self._kept(model)

    def send(self, server: Tree) -> Tree:
        return server

    def start(self, sent: Tree, own: Tree) -> Tree:
        joined = {part: {**entries, **own[part]} for part, entries in model_of(sent).items()}
        return begin(self.optimizer, joined)

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        g, carry = gradient(self.task, carry, batch)
        return descend(self.optimizer, carry, g, self.lr)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        return Update(difference(self._shared(carry), self._shared(sent)), info.examples), self._kept(carry)

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        mean = total.mean()
        delta = {**tree.zeros_like(server["params"]), **mean["delta"]}  # no change of what was not sent
        buffers = {**tree.zeros_like(server["buffers"]), **mean["buffers"]}
        return move(server, {"delta": delta, "buffers": buffers}, self.server_lr)

    def _names(self) -> tuple[str, ...]:
        return self.keep or self.task.names(self.part)

    def _kept(self, model: Model) -> Model:
        return {part: tree.select(entries, self._names()) for part, entries in model_of(model).items()}

    def _shared(self, model: Model) -> Model:
        return {part: tree.without(entries, self._names()) for part, entries in model_of(model).items()}


def fedper(
    task: Task, lr: Positive, keep: tuple[str, ...] = (), optimizer: Optimizer = PLAIN_SGD, server_lr: Positive = 1.0
) -> PartialSharing:
    """The last layer stays with the client, the rest is FedAvg (Arivazhagan et al., 2019).

    `keep` names other parameters to keep, e.g. ["fc2.weight", "fc2.bias"].
    """
    return PartialSharing(task, lr, "head", tuple(keep), optimizer, server_lr)


def fedbn(
    task: Task, lr: Positive, keep: tuple[str, ...] = (), optimizer: Optimizer = PLAIN_SGD, server_lr: Positive = 1.0
) -> PartialSharing:
    """Normalisation layers stay with the client, the rest is FedAvg (Li et al., 2021).

    `keep` names other parameters to keep; without it the model needs a normalisation layer.
    """
    return PartialSharing(task, lr, "norm", tuple(keep), optimizer, server_lr)


def check_known(model: Model, keep: tuple[str, ...]) -> None:
    there = {**model["params"], **model["buffers"]}
    missing = [name for name in keep if name not in there]
    if missing:
        raise ConfigError(f"algorithm.keep: the model has no {missing[0]!r}. It has {', '.join(there)}.")
