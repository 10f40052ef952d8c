"""FedRep."""

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll import tree
from atoll.algorithms.local import difference, gradient, model_of, move
from atoll.algorithms.optimizers import SGD, Optimizer, zero
from atoll.algorithms.partial_sharing import check_known
from atoll.core import Count, Info, Model, Positive, Task, Total, Traits, Update, Whole
from atoll.tree import Tree


@dataclass(frozen=True)
class FedRep:
    """A shared body and a head of one's own, which take turns: while one learns, the other is fixed (Collins, 2021).

    h_k <- h_k - lr grad_h f_k(h_k, b) for `head_steps` batches, then b_k <- b_k - lr grad_b f_k(h_k, b_k) for
    `body_steps`, and again, as long as there are batches; b <- b + server_lr * mean(b_k - b). The paper has one turn
    of each in a round: then `head_steps` are all but the last `body_steps`. FedPer moves both at once.
    """

    task: Task
    lr: Positive
    head_steps: Count = 1
    body_steps: Whole = 1
    keep: tuple[str, ...] = ()  # the head, by the names of its parameters; (): the last layer
    optimizer: Optimizer = SGD()
    server_lr: Positive = 1.0

    def traits(self) -> Traits:
        return Traits(personal=True, partial=True)

    def init(self, model: Model, key: Tensor) -> Tree:
        return model

    def client_state(self, model: Model) -> Tree:
        check_known(model, self.keep)
        return self._head(model)

    def send(self, server: Tree) -> Tree:
        return server

    def start(self, sent: Tree, own: Tree) -> Tree:
        joined = {part: {**entries, **own[part]} for part, entries in model_of(sent).items()}
        parts = self._head(joined)["params"], self._body(joined)["params"]
        head, body = (self.optimizer.init(part) for part in parts)
        nothing = zero(sent["params"])
        return {**joined, "opt": {"head": head, "body": body}, "loss": nothing, "batches": nothing}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        g, carry = gradient(self.task, carry, batch)
        on_head = torch.remainder(carry["batches"], self.head_steps + self.body_steps) < self.head_steps
        (head, body), (g_head, g_body) = (_two(x, self._names()) for x in (carry["params"], g))
        head, opt_head = self._turn(on_head, head, g_head, carry["opt"]["head"])
        body, opt_body = self._turn(~on_head, body, g_body, carry["opt"]["body"])
        joined = {**head, **body}
        params = {name: joined[name] for name in carry["params"]}
        opt = {"head": opt_head, "body": opt_body}
        return {**carry, "params": params, "opt": opt, "batches": carry["batches"] + 1}

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        return Update(difference(self._body(carry), self._body(sent)), info.examples), self._head(carry)

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        mean = total.mean()
        delta = {**tree.zeros_like(server["params"]), **mean["delta"]}  # no change of what was not sent
        buffers = {**tree.zeros_like(server["buffers"]), **mean["buffers"]}
        return move(server, {"delta": delta, "buffers": buffers}, self.server_lr)

    def _turn(self, now: Tensor, params: Tree, g: Tree, opt: Tree) -> tuple[Tree, Tree]:
        """A step of one part, if it is its turn."""
        moved, after = self.optimizer.step(params, g, opt, self.lr)
        return tree.where(now, moved, params), tree.where(now, after, opt)

    def _names(self) -> tuple[str, ...]:
        return self.keep or self.task.names("head")

    def _head(self, model: Model) -> Model:
        return {part: tree.select(entries, self._names()) for part, entries in model_of(model).items()}

    def _body(self, model: Model) -> Model:
        return {part: tree.without(entries, self._names()) for part, entries in model_of(model).items()}


def _two(params: Tree, names: tuple[str, ...]) -> tuple[Tree, Tree]:
    return tree.select(params, names), tree.without(params, names)
