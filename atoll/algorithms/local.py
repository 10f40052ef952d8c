"""What algorithms share: one-liners for ONE client's local training, and for the server's step.

A client carries `{"params", "buffers", "opt", "loss"}` through its steps; an algorithm may carry more beside them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.algorithms.optimizers import Optimizer, zero
from atoll.core import GivesGradient, Info, Model, Task, Update, gradient_and_value
from atoll.errors import ConfigError
from atoll.tree import Tree


def begin(optimizer: Optimizer, model: Model) -> Tree:
    """Start local training from this model, with a fresh optimizer."""
    return {**model_of(model), "opt": optimizer.init(model["params"]), "loss": zero(model["params"])}


def model_of(state: Tree) -> Model:
    """The model inside a server state, a carry or what was sent."""
    return {"params": state["params"], "buffers": state["buffers"]}


def gradient(task: Task, carry: Tree, batch: Tree, extra: Callable[[Tree], Tensor] | None = None) -> tuple[Tree, Tree]:
    """The gradient of the batch loss (plus `extra(params)`), and the carry with renewed buffers and the loss added.

    A task may have a gradient of its own (a private one); `extra` is then added to it as it is.
    """
    if isinstance(task, GivesGradient):
        return _own_gradient(task, carry, batch, extra)

    def loss(params: Tree) -> tuple[Tensor, Tree]:
        value, buffers = task.loss(params, carry["buffers"], batch)
        return (value if extra is None else value + extra(params)), {"loss": value, "buffers": buffers}

    g, (_, out) = gradient_and_value(loss, carry["params"])
    return g, {**carry, "buffers": out["buffers"], "loss": carry["loss"] + out["loss"]}


def _own_gradient(
    task: GivesGradient, carry: Tree, batch: Tree, extra: Callable[[Tree], Tensor] | None
) -> tuple[Tree, Tree]:
    g, value = task.gradient(carry["params"], carry["buffers"], batch)
    if extra is not None:
        g = tree.add(g, gradient_and_value(lambda params: (extra(params), {}), carry["params"])[0])
    return g, {**carry, "loss": carry["loss"] + value}


def descend(optimizer: Optimizer, carry: Tree, g: Tree, lr: float) -> Tree:
    """One step of the optimizer against the gradient `g`."""
    params, opt = optimizer.step(carry["params"], g, carry["opt"], lr)
    return {**carry, "params": params, "opt": opt}


def difference(new: Model, old: Model) -> Tree:
    """What changed, as the named parts of an update."""
    return {"delta": tree.sub(new["params"], old["params"]), "buffers": tree.sub(new["buffers"], old["buffers"])}


def delta_update(carry: Tree, sent: Tree, info: Info) -> Update:
    """What local training changed, weighted by the client's examples."""
    return Update(difference(carry, sent), info.examples)


def move(server: Tree, mean: Tree, lr: float) -> Tree:
    """The server's model moved along the mean change; statistics are averages, so they move all the way."""
    return {
        **server,
        "params": tree.add_scaled(server["params"], mean["delta"], lr),
        "buffers": renewed(server["buffers"], mean["buffers"]),
    }


def renewed(buffers: Tree, change: Tree) -> Tree:
    """Buffers after the mean change; a counter stays a whole number."""
    return tree.map(lambda b, d: tree.cast_like(b + d, b), buffers, change)  # type: ignore[no-any-return]


def check_divisor(name: str, value: object) -> None:
    """Refuse a setting that a schedule has brought to zero, and that is divided by."""
    if isinstance(value, float | int) and value <= 0:
        raise ConfigError(
            f"algorithm.{name}: is divided by, and its schedule reaches {value:g}. Give the schedule an end above 0."
        )


def no_loss_at_server(sent: Tree) -> Tree:
    """What a carry holds of the server's model's loss before the first batch."""
    return {"server_loss": zero(sent["params"]), "seen": zero(sent["params"])}


def add_loss_at_server(task: Task, carry: Tree, sent: Tree, batch: Tree) -> Tree:
    """The carry with the loss of one more batch at the server's model, whose buffers stay as they were sent."""
    n = batch["mask"].sum()
    loss, _ = task.loss(sent["params"], sent["buffers"], batch)
    return {**carry, "server_loss": carry["server_loss"] + n * loss.detach(), "seen": carry["seen"] + n}


def loss_at_server(carry: Tree) -> Tensor:
    """The mean loss, at the server's model, of the examples that the steps read."""
    return carry["server_loss"] / carry["seen"]  # type: ignore[no-any-return]


def row_noise(batch: Tree, place: int, shape: tuple[int, ...]) -> Tensor:
    """(B, *shape) normal numbers, addressed by the batch's key, a place of one's own and the row.

    Rows do not depend on how many there are: engines pad batches, or do not.
    """
    key, rows = rng.fold(batch["key"], place), torch.arange(len(batch["mask"]), device=batch["mask"].device)
    return torch.func.vmap(lambda row: rng.normal(rng.fold(key, row), shape))(rows)


def equal_weight(info: Info) -> Tensor:
    """The weight of a client where all count the same."""
    return torch.ones_like(info.examples)
