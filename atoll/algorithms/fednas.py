"""FedNAS: clients learn an architecture beside its weights."""

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll import tree
from atoll.algorithms.local import begin, descend, difference, gradient, move
from atoll.algorithms.optimizers import SGD, Optimizer
from atoll.core import Info, Model, Positive, Task, Total, Traits, Unsigned, Update
from atoll.errors import ConfigError
from atoll.tree import Tree


@dataclass(frozen=True)
class FedNAS:
    """First-order DARTS on every client, and FedAvg of weights and architecture (He et al., 2020; Liu et al., 2019).

    Of every batch the even examples train the weights w, the odd ones the architecture a, the parameters whose names
    end with one of `architecture`: a <- a - arch_lr d(L_odd + arch_train L_even)/da, then w <- w - lr dL_even/dw. With
    arch_train left out a moves by the examples that w does not see, as in DARTS; the paper's L_train + lambda L_val
    (MiLeNAS's) is arch_train = 1 / lambda, and lambda times the rate. What changed of a is a part of its own in
    updates, which the server moves by arch_server_lr. The record has the strongest operation of an edge.
    """

    task: Task
    lr: Positive
    arch_lr: Unsigned = 0.1
    architecture: tuple[str, ...] = ("alpha",)
    optimizer: Optimizer = SGD()
    server_lr: Positive = 1.0
    arch_server_lr: Positive = 1.0
    arch_train: Unsigned | None = None

    def traits(self) -> Traits:
        return Traits(records=("operations",))

    def init(self, model: Model, key: Tensor) -> Tree:
        searched, _ = self._split(model["params"])
        if not searched:
            raise ConfigError(
                f"algorithm.architecture: no parameter of the model ends with {' or '.join(self.architecture)}. Use "
                "task.model = 'supernet', or name the one that chooses."
            )
        return {**model, "operations": _strongest(searched)}

    def client_state(self, model: Model) -> Tree:
        return {}

    def send(self, server: Tree) -> Tree:
        return {"params": server["params"], "buffers": server["buffers"]}

    def start(self, sent: Tree, own: Tree) -> Tree:
        return begin(self.optimizer, sent)

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        even = (torch.arange(batch["mask"].shape[-1], device=batch["mask"].device) % 2 == 0).to(batch["mask"])
        g, _ = gradient(self.task, carry, {**batch, "mask": batch["mask"] * (1 - even)})
        searched, _ = self._split(g)
        if self.arch_train is not None:
            trained, _ = gradient(self.task, carry, {**batch, "mask": batch["mask"] * even})
            searched = tree.add_scaled(searched, self._split(trained)[0], self.arch_train)
        moved = {k: x - self.arch_lr * searched[k] if k in searched else x for k, x in carry["params"].items()}
        g, carry = gradient(self.task, {**carry, "params": moved}, {**batch, "mask": batch["mask"] * even})
        g = {k: torch.zeros_like(x) if k in searched else x for k, x in g.items()}
        return descend(self.optimizer, carry, g, self.lr)

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        change = difference(carry, sent)
        searched, weights = self._split(change["delta"])
        return Update({"delta": weights, "architecture": searched, "buffers": change["buffers"]}, info.examples), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        mean = total.mean()
        searched = tree.scale(mean["architecture"], self.arch_server_lr / self.server_lr)
        ordered = {k: (searched if k in searched else mean["delta"])[k] for k in server["params"]}
        new = move(server, {"delta": ordered, "buffers": mean["buffers"]}, self.server_lr)
        return {**new, "operations": _strongest(self._split(new["params"])[0])}

    def _split(self, params: Tree) -> tuple[Tree, Tree]:
        """The architecture, and the weights."""
        searched = {k: x for k, x in params.items() if k.endswith(tuple(self.architecture))}
        return searched, {k: x for k, x in params.items() if k not in searched}


def _strongest(searched: Tree) -> Tensor:
    """(edges,) the operation with the largest share on each: 0 is none."""
    return torch.cat([x.reshape(-1, x.shape[-1]).argmax(-1) for x in searched.values()])
