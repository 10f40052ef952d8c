"""What is known of a batch's statistics at BatchNorm layers: from the broadcast model, or from what clients send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.attacks.leakage.observe import Observed
from atoll.attacks.leakage.pixels import dummies
from atoll.core import functional
from atoll.errors import ConfigError
from atoll.tree import Tree

Statistics = Callable[[Tensor, Tensor], Tree]
Known = Literal["running", "sent"]
_KINDS = ("running_mean", "running_var")


def statistics_of(seen: Observed) -> Statistics:
    """Mean and unbiased variance at every such layer, of all examples of a group, named like the model's buffers."""
    task, sent, inputs = seen.setup.task, seen.simulation.sent, seen.setup.dataset.inputs

    def statistics(x: Tensor, y: Tensor) -> Tree:
        flat = x.reshape(-1, *inputs)
        batch = {"x": flat, "y": y.reshape(len(flat), *y.shape[2:]), "mask": torch.ones(len(flat), device=x.device)}
        batch["key"] = torch.zeros(2, dtype=torch.int64, device=x.device)
        moments = task.statistics(sent["params"], sent["buffers"], batch)
        return _of_batches(task.renewed_buffers(moments, sent["buffers"], batch["mask"].sum()))

    return statistics


def expected_statistics(seen: Observed, known: Known) -> Tree:
    """Leaves (G, ...): what those should be. GradInversion has the model's own.

    A client that sends its running statistics sends those of its batch: they move `share` of the way to it in a step.
    """
    old = _of_batches(seen.simulation.sent["buffers"])
    if known == "running":
        return tree.stack(old, len(seen.victims))
    if not seen.buffers or seen.victims.plan.shape[2] > 1:
        raise ConfigError(
            "--statistics: 'sent' needs BatchNorm's statistics in the update, of one local step. "
            "Use --statistics running."
        )
    share = running_share(seen)
    return tree.map(lambda change, was: was + change / share, _of_batches(seen.buffers), old)  # type: ignore[no-any-return]


def _of_batches(buffers: Tree) -> Tree:
    return {name: buffer for name, buffer in buffers.items() if name.endswith(_KINDS)}


def running_share(seen: Observed) -> float:
    """How far one step moves the running statistics towards its batch, tried on made-up examples."""
    first = seen.part(slice(0, 1))
    n = first.victims.x.shape[2]
    x = dummies(first.victims.ids[:, :1], (1, n, *seen.setup.dataset.inputs), rng.key(0, "share")).to(seen.device)[0]
    work = {name: column[0, 0] for name, column in first.work().items()}
    with functional(), torch.no_grad():
        moved = seen.simulation.whole(x[0], first.victims.y[0, 0], work)["buffers"]
        whole = tree.sub(statistics_of(seen)(x, first.victims.y[0, :1]), _of_batches(seen.simulation.sent["buffers"]))
    name = next(name for name in whole if name.endswith(_KINDS[0]))
    return float((moved[name] * whole[name]).sum() / (whole[name] ** 2).sum())
