"""FedGKT: clients train small networks, the server a large one on their features, and they teach each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from atoll import rng, tree
from atoll.algorithms.local import begin, descend, equal_weight
from atoll.algorithms.optimizers import SGD, Optimizer, zero
from atoll.core import (
    PLACE,
    Algorithm,
    Count,
    Info,
    Model,
    Positive,
    Task,
    Total,
    Traits,
    Unsigned,
    Update,
    apply_layers,
    class_logits,
    functional,
    gradient_and_value,
)
from atoll.errors import ConfigError
from atoll.tree import Tree

_OF_CLIENT, _OF_SERVER = ("extractor.", "classifier."), ("tower.",)


@dataclass(frozen=True)
class FedGKT:
    """Group knowledge transfer (He, Annavaram and Avestimehr, 2020).

    Client k: CE(c_k(h_k(x)), y) + kl_weight T^2 KL(softmax(s / T) || softmax(c_k(h_k(x)) / T)), s what the server said
    of x in the last round in which k was there; without the second term before that. It sends h_k(x), c_k(h_k(x)) and y
    of its examples, and the server's tower f moves, in `server_epochs` passes over all of them, against
    CE(f(h), y) + server_kl_weight T^2 KL(softmax(c / T) || softmax(f(h) / T)); then it says s = f(h). Nothing is
    averaged: extractors and classifiers h_k, c_k are the clients' own. A client predicts with f(h_k(x)).
    """

    task: Task
    lr: Positive
    largest_client: int  # its examples
    kl_weight: Unsigned = 1.0
    server_kl_weight: Unsigned = 1.0
    temperature: Positive = 3.0
    tower_lr: Unsigned = 0.1
    server_epochs: Count = 1
    server_batch: Count = 64
    optimizer: Optimizer = SGD()

    def traits(self) -> Traits:
        return Traits(personal=True, partial=True, places=True)

    def init(self, model: Model, key: Tensor) -> Tree:
        missing = [p for p in (*_OF_CLIENT, *_OF_SERVER) if not any(name.startswith(p) for name in model["params"])]
        if missing:
            raise ConfigError(
                f"algorithm.name: fedgkt cuts a model into the clients' extractor and classifier and the server's "
                f"tower, and this one has no {missing[0].rstrip('.')!r}. Use task.model = 'gkt'."
            )
        if self.task.head_shape()[0] == 1:
            raise ConfigError(
                "algorithm.name: fedgkt compares probabilities of classes, and this data has none. Use "
                "algorithm.name = 'fedavg', or data with classes."
            )
        if not self.task.is_cross_entropy():
            raise ConfigError(
                "task.loss: fedgkt trains clients and tower with the cross-entropy of classes, without weights or "
                "smoothing, and would use no other loss. Leave task.loss out, or use algorithm.name = 'fedavg'."
            )
        return model

    def client_state(self, model: Model) -> Tree:
        return {"params": _part(model["params"], _OF_CLIENT)}

    def send(self, server: Tree) -> Tree:
        known = zero(server["params"]).expand(self.largest_client).clone()
        logits = known[:, None].expand(-1, _widths(server["params"])[1]).clone()
        return {"params": _part(server["params"], _OF_SERVER), "logits": logits, "known": known}

    def start(self, sent: Tree, own: Tree) -> Tree:
        begun = begin(self.optimizer, {"params": own["params"], "buffers": {}})
        return {**begun, "params": {**sent["params"], **own["params"]}}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        mask = batch["mask"] / batch["mask"].sum().clamp(min=1)
        taught, known = sent["logits"][batch[PLACE]], sent["known"][batch[PLACE]]

        def loss(params: Tree) -> tuple[Tensor, Tree]:
            logits = _classified(params, _extracted(params, batch["x"]))
            each = F.cross_entropy(logits, batch["y"], reduction="none")
            away = self.kl_weight * known * divergence(logits, taught, self.temperature)
            return ((each + away) * mask).sum(), {}

        mine = _part(carry["params"], _OF_CLIENT)
        g, (value, _) = gradient_and_value(loss, mine)
        moved = descend(self.optimizer, {**carry, "params": mine, "loss": carry["loss"] + value}, g, self.lr)
        return {**moved, "params": {**carry["params"], **moved["params"]}}

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        """What is sent is made in a pass of its own, once all steps are done: `extraction`."""
        kept = {"params": _part(carry["params"], _OF_CLIENT)}
        return Update({"trained": zero(kept["params"]) + 1}, equal_weight(info)), kept

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        return server

    def extraction(self) -> Algorithm:
        return Extraction(self.largest_client)

    def answer(self, server: Tree, examples: int) -> Tree:
        return {"logits": torch.zeros(examples, _widths(server["params"])[1])} if examples else {}

    def report(self, server: Tree, examples: int) -> Tree:
        return _rows(_widths(server["params"]), examples, torch.device("cpu"))

    def teach(self, server: Tree, rows: Tree, key: Tensor) -> tuple[Tree, Tensor]:
        carry = begin(self.optimizer, {"params": _part(server["params"], _OF_SERVER), "buffers": {}})
        size = len(rows["labels"])
        with functional():
            for turn in range(self.server_epochs):
                order = torch.argsort(rng.uniform(rng.fold_host(key, turn), (size,)), stable=True)
                for index in torch.split(order.to(rows["labels"].device), self.server_batch):  # type: ignore[no-untyped-call]
                    g = self._slope(carry["params"], tree.rows(rows, index))
                    carry = descend(self.optimizer, carry, g, self.tower_lr)
        tower = carry["params"]
        return {**server, "params": {**server["params"], **tower}}, _judged(tower, rows["features"])

    def _slope(self, tower: Tree, rows: Tree) -> Tree:
        def loss(params: Tree) -> tuple[Tensor, Tree]:
            logits = _judged(params, rows["features"])
            away = self.server_kl_weight * divergence(logits, rows["logits"], self.temperature)
            return (F.cross_entropy(logits, rows["labels"], reduction="none") + away).mean(), {}

        return gradient_and_value(loss, tower)[0]


@dataclass(frozen=True)
class Extraction:
    """A pass of a client over its examples, without learning: features, logits and labels, a row for each example."""

    examples: int  # of the largest client

    def traits(self) -> Traits:
        return Traits(places=True)

    def init(self, model: Model, key: Tensor) -> Tree:
        return model

    def client_state(self, model: Model) -> Tree:
        return {"params": _part(model["params"], _OF_CLIENT)}

    def send(self, server: Tree) -> Tree:
        return {}

    def start(self, sent: Tree, own: Tree) -> Tree:
        """One row more than there are examples, for padding to be written to."""
        params, size = own["params"], self.examples + 1
        rows = _rows(_widths(params), size, tree.device(params))
        return {**rows, "read": zero(params).expand(size).clone()}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        features = _extracted(own["params"], batch["x"])
        logits = _classified(own["params"], features)
        index = torch.where(batch["mask"] > 0, batch[PLACE], self.examples)
        new = {"features": features, "logits": logits, "labels": batch["y"], "read": torch.ones_like(batch["mask"])}
        return {name: _written(carry[name], index, new[name]) for name in carry}

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        return Update(tree.rows(carry, slice(0, self.examples)), equal_weight(info)), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        return server


def divergence(logits: Tensor, taught: Tensor, temperature: float | Tensor) -> Tensor:
    """T^2 KL(softmax(taught / T) || softmax(logits / T)) of each example (Hinton et al., 2015)."""
    student, teacher = ((x / temperature).log_softmax(-1) for x in (logits, taught))
    return temperature * temperature * (teacher.exp() * (teacher - student)).sum(-1)


def _extracted(params: Tree, x: Tensor) -> Tensor:
    return apply_layers(params, "extractor", x).relu()


def _classified(params: Tree, features: Tensor) -> Tensor:
    return class_logits(apply_layers(params, "classifier", features))


def _judged(params: Tree, features: Tensor) -> Tensor:
    return class_logits(apply_layers(params, "tower", features))


def _part(params: Tree, prefixes: tuple[str, ...]) -> Tree:
    return {name: x for name, x in params.items() if name.startswith(prefixes)}


def _widths(params: Tree) -> tuple[int, int]:
    """How many features and how many logits an example has."""
    outputs, features = params["classifier.0.weight"].shape
    return features, max(2, outputs)


def _rows(widths: tuple[int, int], examples: int, device: torch.device) -> Tree:
    """What a client says of so many examples, all zeros."""
    features, logits = (torch.zeros(examples, width, device=device) for width in widths)
    return {"features": features, "logits": logits, "labels": torch.zeros(examples, dtype=torch.int64, device=device)}


def _written(table: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """The table with these rows in these places."""
    at = index.reshape(-1, *[1] * (rows.dim() - 1)).expand(rows.shape)
    return table.scatter(0, at, rows.to(table.dtype))
