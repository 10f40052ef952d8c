"""The losses that a file can name; `targets` and `outputs` come from the data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from atoll.errors import ConfigError
from atoll.tasks.losses import Loss

Share = Annotated[float, Field(ge=0, le=1)]
Amounts = list[Annotated[float, Field(ge=0)]]
Reduced = Literal["mean", "sum"]


def cross_entropy(
    targets: Tensor,
    outputs: int,
    weight: Amounts | Literal["balanced"] | None = None,
    ignore_index: int = -100,
    label_smoothing: Share = 0.0,
    reduction: Reduced = "mean",
) -> Loss:
    """Of classes. weight: one for each, or "balanced": all examples over classes times the examples of the class."""
    given = _balanced(targets, outputs) if weight == "balanced" else _each(weight, outputs, "weight")
    return nn.CrossEntropyLoss(given, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction)


def focal(gamma: Annotated[float, Field(ge=0)] = 2.0) -> Loss:
    """Cross-entropy in which examples that are right already count little: (1 - p)^gamma. Lin et al. (2017)."""
    return partial(_focal, gamma=gamma)


def binary_cross_entropy(
    targets: Tensor, outputs: int, pos_weight: Amounts | Literal["balanced"] | None = None, reduction: Reduced = "mean"
) -> Loss:
    """Of several labels, each yes or no. pos_weight: one for each, or "balanced": those without it over those with."""
    with_it = targets.float().mean(0).clamp(1e-6, 1)
    balanced = pos_weight == "balanced"
    given = (1 - with_it) / with_it if balanced else _each(pos_weight, outputs, "pos_weight")  # type: ignore[arg-type]
    return nn.BCEWithLogitsLoss(pos_weight=given, reduction=reduction)


def mse(reduction: Reduced = "mean") -> Loss:
    """Squared error."""
    return nn.MSELoss(reduction=reduction)


def mae(reduction: Reduced = "mean") -> Loss:
    """Absolute error."""
    return nn.L1Loss(reduction=reduction)


def huber(delta: Annotated[float, Field(gt=0)] = 1.0, reduction: Reduced = "mean") -> Loss:
    """Squared error up to delta, absolute beyond."""
    return nn.HuberLoss(delta=delta, reduction=reduction)


def _focal(out: Tensor, y: Tensor, gamma: float) -> Tensor:
    nll = F.cross_entropy(out, y, reduction="none")
    return ((1 - (-nll).exp()) ** gamma * nll).mean()


def _balanced(y: Tensor, classes: int) -> Tensor:
    """As scikit-learn has it; a class without an example is never asked for its weight."""
    counts = torch.bincount(y, minlength=classes).float()
    return len(y) / (classes * counts.clamp(min=1))


def _each(weight: Amounts | None, outputs: int, option: str) -> Tensor | None:
    if weight is not None and len(weight) != outputs:
        raise ConfigError(f"task.loss.{option}: has {len(weight)} numbers for {outputs} outputs. Give one for each.")
    return None if weight is None else torch.tensor(weight)


OF_CLASSES = ("cross_entropy", "focal")  # the others are of numbers
LOSSES: dict[str, Callable[..., Loss]] = {
    "cross_entropy": cross_entropy,
    "focal": focal,
    "binary_cross_entropy": binary_cross_entropy,
    "mse": mse,
    "mae": mae,
    "huber": huber,
}
