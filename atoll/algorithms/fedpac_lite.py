"""FedPAC, without its second half."""

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll import tree
from atoll.algorithms.local import begin, descend, difference, gradient, model_of, move
from atoll.algorithms.optimizers import SGD, Optimizer, zero
from atoll.core import Info, Model, Positive, Task, Total, Traits, Unsigned, Update
from atoll.errors import ConfigError
from atoll.tree import Tree


@dataclass(frozen=True)
class FedPACLite:
    """A shared body whose features are drawn to all clients' class means; a head of one's own (Xu et al., 2023).

    Loss + mu * mean |z(x) - c_y|^2 / d, with z the d features that enter the last layer and c_y their mean over all
    clients' examples of class y in the round before; a class that nobody has shown yet pulls nothing. Clients send the
    change of the body and the sums of their features by class. Left out of FedPAC: the head that each client combines
    from all clients' heads by a quadratic programme (here it stays as trained), and its two phases in a round (here
    both parts learn at once; FedRep takes turns).
    """

    task: Task
    lr: Positive
    mu: Unsigned = 1.0
    optimizer: Optimizer = SGD()
    server_lr: Positive = 1.0

    def traits(self) -> Traits:
        return Traits(personal=True, partial=True)

    def init(self, model: Model, key: Tensor) -> Tree:
        classes, width = self.task.head_shape()
        like = zero(model["params"])
        return {**model, "means": like.new_zeros(classes, width), "shown": like.new_zeros(classes)}

    def client_state(self, model: Model) -> Tree:
        return self._head(model)

    def send(self, server: Tree) -> Tree:
        return server

    def start(self, sent: Tree, own: Tree) -> Tree:
        joined = {part: {**entries, **own[part]} for part, entries in model_of(sent).items()}
        sums = {"sums": torch.zeros_like(sent["means"]), "counts": torch.zeros_like(sent["shown"])}
        return {**begin(self.optimizer, joined), **sums}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        of_class = self._membership(batch, sent["shown"])

        def apart(params: Tree) -> Tensor:
            z = self.task.features(params, carry["buffers"], batch)
            gap = ((z - of_class @ sent["means"]) ** 2).mean(1) * (of_class @ sent["shown"])
            return self.mu * gap.sum() / batch["mask"].sum().clamp(min=1)  # type: ignore[no-any-return]

        g, carry = gradient(self.task, carry, batch, extra=apart)
        carry = descend(self.optimizer, carry, g, self.lr)
        z = self.task.features(carry["params"], carry["buffers"], batch, training=False).detach()
        return {**carry, "sums": carry["sums"] + of_class.T @ z, "counts": carry["counts"] + of_class.sum(0)}

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        seen = carry["counts"].sum().clamp(min=1)
        shares = {"sums": carry["sums"] / seen, "counts": carry["counts"] / seen}
        return Update({**difference(self._body(carry), self._body(sent)), **shares}, info.examples), self._head(carry)

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        mean = total.mean()
        delta = {**tree.zeros_like(server["params"]), **mean["delta"]}
        buffers = {**tree.zeros_like(server["buffers"]), **mean["buffers"]}
        moved = move(server, {"delta": delta, "buffers": buffers}, self.server_lr)
        there = mean["counts"] > 0
        means = mean["sums"] / torch.where(there, mean["counts"], 1.0)[:, None]
        means = torch.where(there[:, None], means, server["means"])
        return {**moved, "means": means, "shown": torch.where(there, 1.0, server["shown"])}

    def _membership(self, batch: Tree, like: Tensor) -> Tensor:
        """(B, classes): 1 where a real example is of the class; without classes all are of one."""
        y = batch["y"]
        if len(like) > 1 and (y.is_floating_point() or y.dim() != 1):
            raise ConfigError(
                "algorithm.name: fedpac_lite aligns features by the class of each example, and this task has no one "
                "class for each. Use fedrep or fedper."
            )
        classes = torch.zeros_like(batch["mask"], dtype=torch.int64) if len(like) == 1 else y.long()
        number = torch.arange(len(like), device=like.device)
        of_class: Tensor = (classes[:, None] == number).to(like.dtype) * batch["mask"][:, None]
        return of_class

    def _head(self, model: Model) -> Model:
        names = self.task.names("head")
        return {part: tree.select(entries, names) for part, entries in model_of(model).items()}

    def _body(self, model: Model) -> Model:
        names = self.task.names("head")
        return {part: tree.without(entries, names) for part, entries in model_of(model).items()}
