"""What algorithms share that learn from scores of others on public examples."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from atoll import rng
from atoll.core import Model, PublicExamples, Task, class_logits
from atoll.errors import ConfigError

Match = Literal["kl", "scores"]


def check_public(public: PublicExamples | None, name: str) -> None:
    """Refuse a run in which there is nothing to compare scores on."""
    if public is None:
        raise ConfigError(
            f"algorithm.name: {name} compares what models say of public examples, and there are none. Say which share "
            "of all examples is public, such as server.root = 0.05."
        )


def public_scores(task: Task, model: Model, public: PublicExamples) -> Tensor:
    """What a model says of all public examples, (P, classes)."""
    return class_logits(task.logits(model["params"], model["buffers"], public.batch(), training=False))


def mismatch(logits: Tensor, taught: Tensor, match: Match, temperature: float | Tensor) -> Tensor:
    """How far a batch of scores is from those that are taught.

    "kl": T^2 KL(softmax(taught / T) || softmax(logits / T)) (Hinton et al., 2015); "scores": half the squared distance
    of the scores. Means over examples.
    """
    if match == "scores":
        return 0.5 * ((logits - taught) ** 2).sum(-1).mean()
    student, teacher = ((x / temperature).log_softmax(-1) for x in (logits, taught))
    each = F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)
    return temperature * temperature * each.mean()


def turns(public: int, batch: int, steps: int, key: Tensor) -> list[Tensor]:
    """The rows of so many batches: pass after pass over all examples, each in an order of its own."""
    size = min(batch, public)
    passes = -(-steps * size // public)
    orders = [torch.argsort(rng.uniform(rng.fold_host(key, i), (public,)), stable=True) for i in range(passes)]
    rows = torch.cat(orders) if orders else torch.zeros(0, dtype=torch.int64)
    return [rows[i * size : (i + 1) * size] for i in range(steps)]
