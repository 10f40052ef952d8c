"""What is known of a batch's statistics at BatchNorm layers: from the broadcast model, or from what clients send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from atoll import rng
from atoll.attacks.leakage.observe import Observed
from atoll.attacks.leakage.pixels import dummies
from atoll.core import functional
from atoll.errors import ConfigError
from atoll.tree import Tree

Statistics = Callable[[Tensor, Tensor], Tree]
Known = Literal["running", "sent"]
_KINDS = ("running_mean", "running_var")


def statistics_of(seen: Observed) -> Statistics:
    """First two moments about the broadcast running mean, at every such layer, of all examples of a group."""
    task, sent, inputs = seen.setup.task, seen.simulation.sent, seen.setup.dataset.inputs

    def statistics(x: Tensor, y: Tensor) -> Tree:
        flat = x.reshape(-1, *inputs)
        batch = {"x": flat, "y": y.reshape(len(flat), *y.shape[2:]), "mask": torch.ones(len(flat), device=x.device)}
        batch["key"] = torch.zeros(2, dtype=torch.int64, device=x.device)
        found = task.statistics(sent["params"], sent["buffers"], batch)
        return {name: leaf for name, leaf in found.items() if name.endswith(_KINDS)}

    return statistics


def expected_moments(seen: Observed, known: Known) -> Tree:
    """Leaves (G, ...): what those moments should be."""
    if known == "running":
        return _running(seen.simulation.sent, len(seen.victims))
    if not seen.buffers or seen.victims.plan.shape[2] > 1:
        raise ConfigError(
            "--statistics: 'sent' needs BatchNorm's statistics in the update, of one local step. "
            "Use --statistics running."
        )
    return _sent(seen, running_share(seen))


def _running(sent: Tree, groups: int) -> Tree:
    """As GradInversion has it: mean 0 about itself, and the broadcast variance."""
    wanted = {}
    for name, buffer in sent["buffers"].items():
        if name.endswith(_KINDS):
            value = torch.zeros_like(buffer) if name.endswith(_KINDS[0]) else buffer
            wanted[name] = value.expand(groups, *buffer.shape)
    return wanted


def _sent(seen: Observed, share: float) -> Tree:
    """Running statistics move `share` of the way to the batch's: mean = old + change / share, and so the variance."""
    old, wanted = seen.simulation.sent["buffers"], {}
    for name, change in seen.buffers.items():
        if name.endswith(_KINDS[0]):
            spread = name.replace(*_KINDS)
            first = change / share
            wanted[name] = first
            wanted[spread] = (old[spread] + seen.buffers[spread] / share).clamp(min=0) + first**2
    return wanted


def running_share(seen: Observed) -> float:
    """How far one step moves the running statistics towards its batch, tried on made-up examples."""
    first = seen.part(slice(0, 1))
    n = first.victims.x.shape[2]
    x = dummies(first.victims.ids[:, :1], (1, n, *seen.setup.dataset.inputs), rng.key(0, "share")).to(seen.device)[0]
    work = {name: column[0, 0] for name, column in first.work().items()}
    with functional(), torch.no_grad():
        moved = seen.simulation.whole(x[0], first.victims.y[0, 0], work)["buffers"]
        moments = statistics_of(seen)(x, first.victims.y[0, :1])
    name = next(name for name in moments if name.endswith(_KINDS[0]))
    return float((moved[name] * moments[name]).sum() / (moments[name] ** 2).sum())
