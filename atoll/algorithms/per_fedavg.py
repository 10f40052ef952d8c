"""Per-FedAvg."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from atoll import tree
from atoll.algorithms.local import check_divisor, difference, equal_weight, gradient, model_of, move
from atoll.algorithms.optimizers import zero
from atoll.core import Info, Model, Positive, Task, Total, Traits, Unsigned, Update, functional, gradient_and_value
from atoll.tree import Tree


@dataclass(frozen=True)
class PerFedAvg:
    """A start from which one gradient step suffices: MAML over clients (Fallah et al., 2020).

    The loss of a client is F_k(w) = f_k(w - inner_lr grad f_k(w)), and w_k <- w_k - lr grad F_k(w_k) on every batch,
    with grad F = (I - inner_lr H) g, g = grad f(w - inner_lr grad f(w)). order = "exact" takes H g by automatic
    differentiation, "hessian_free" as (grad f(w + delta g) - grad f(w - delta g)) / 2 delta (the paper's HF), "first"
    leaves it out (FO). All gradients are of one batch, where the paper draws several. Clients count alike. What a
    client has after training is the adapted model: one step of inner_lr for every batch, from what it was sent. So
    what counts is evaluate.after = true.
    """

    task: Task
    lr: Positive
    inner_lr: Unsigned = 0.05
    order: Literal["first", "exact", "hessian_free"] = "first"
    server_lr: Positive = 1.0
    delta: Positive = 0.001  # of the difference of gradients

    def __post_init__(self) -> None:
        check_divisor("delta", self.delta)

    def traits(self) -> Traits:
        return Traits()

    def init(self, model: Model, key: Tensor) -> Tree:
        return model

    def client_state(self, model: Model) -> Tree:
        return {}

    def send(self, server: Tree) -> Tree:
        return server

    def start(self, sent: Tree, own: Tree) -> Tree:
        begun = {**model_of(sent), "loss": zero(sent["params"])}
        return {**begun, "meta": begun}

    def step(self, carry: Tree, sent: Tree, own: Tree, batch: Tree) -> Tree:
        g, adapted = gradient(self.task, carry, batch)
        params = tree.add_scaled(carry["params"], g, -self.inner_lr)
        slopes = {"first": self._first, "exact": self._exact, "hessian_free": self._hessian_free}
        g, meta = slopes[self.order](carry["meta"], batch)
        meta = {**meta, "params": tree.add_scaled(meta["params"], g, -self.lr)}
        return {**adapted, "params": params, "meta": meta}

    def finish(self, carry: Tree, sent: Tree, own: Tree, info: Info) -> tuple[Update, Tree]:
        return Update(difference(carry["meta"], sent), equal_weight(info)), own

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        return move(server, total.mean(), self.server_lr)

    def _first(self, meta: Tree, batch: Tree) -> tuple[Tree, Tree]:
        """The gradient at the adapted model."""
        g, after = gradient(self.task, meta, batch)
        ahead, _ = gradient(self.task, {**after, "params": tree.add_scaled(meta["params"], g, -self.inner_lr)}, batch)
        return ahead, after

    def _hessian_free(self, meta: Tree, batch: Tree) -> tuple[Tree, Tree]:
        """The gradient at the adapted model, less what the Hessian makes of it: central differences of gradients."""
        g, after = self._first(meta, batch)
        above, below = (
            gradient(self.task, {**meta, "params": tree.add_scaled(meta["params"], g, way * self.delta)}, batch)[0]
            for way in (1, -1)
        )
        curved = tree.scale(tree.sub(above, below), 0.5 / self.delta)
        return tree.add_scaled(g, curved, -self.inner_lr), after

    def _exact(self, meta: Tree, batch: Tree) -> tuple[Tree, Tree]:
        """The gradient through the adaptation."""

        def plain(params: Tree) -> tuple[Tensor, Tree]:
            return self.task.loss(params, meta["buffers"], batch)

        def adapted(params: Tree) -> tuple[Tensor, Tree]:
            g, (value, buffers) = gradient_and_value(plain, params)
            ahead = tree.add_scaled(params, g, -self.inner_lr)
            return self.task.loss(ahead, buffers, batch)[0], {"loss": value, "buffers": buffers}

        with functional():  # gradients of gradients
            g, (_, out) = gradient_and_value(adapted, meta["params"])
        return g, {**meta, "buffers": out["buffers"], "loss": meta["loss"] + out["loss"]}
