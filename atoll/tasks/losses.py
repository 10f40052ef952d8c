"""Losses of one's own, as torch has them: of the real examples of a batch, all together, whatever the padding.

How many are real is data to an engine that stacks clients, so a loss must come apart into its examples: torch's
weighted means do, and so does every loss whose value is the mean or the sum over examples, which is tried once. Any
other sees its batch whole, on the engine that cuts batches to what is real.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.errors import ConfigError

Loss = Callable[[Tensor, Tensor], Tensor]
Reduction = Literal["mean", "sum"]
_CROSS_ENTROPY = ("weight", "ignore_index", "label_smoothing", "reduction")
_CLOSE = 1e-5  # a loss of a batch and of its examples differ by the rounding of float32


class BatchLoss(Protocol):
    """The loss of a batch whose mask tells which examples are real."""

    @property
    def separable(self) -> bool:
        """Is it the plain mean over its examples? Then each has a gradient of its own."""
        ...

    @property
    def whole_because(self) -> str | None:
        """Why it must see the real examples alone and all together, if it must."""
        ...

    @property
    def module(self) -> nn.Module | None:
        """What of it goes along to another device."""
        ...

    def examples(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) sums and (B,) weights, whose ratio over any group is the loss to report."""
        ...

    def batch(self, out: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """The loss to train with."""
        ...


@dataclass(frozen=True, eq=False)
class ExampleLoss:
    """The mean or the sum over a batch of one number for each example."""

    rows: Loss  # gives (B,)
    reduction: Reduction = "mean"
    module: nn.Module | None = None
    whole_because: None = None

    @property
    def separable(self) -> bool:
        return self.reduction == "mean"

    def examples(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        sums = self.rows(out, y)
        return sums, torch.ones_like(sums)

    def batch(self, out: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        sums, weights = self.examples(out, y)
        return masked_mean(sums, weights, mask) if self.reduction == "mean" else (sums * mask).sum()


@dataclass(frozen=True, eq=False)
class WeightedCrossEntropy:
    """torch's own of classes: the sum of w l over the sum of w. NLLLoss takes log probabilities.

    Where all labels of a batch are ignored torch has 0 / 0; here nothing is learned from it.
    """

    module: nn.CrossEntropyLoss | nn.NLLLoss
    whole_because: None = None

    @property
    def separable(self) -> bool:
        return self.module.weight is None and self.module.ignore_index < 0 and self.module.reduction != "sum"

    def examples(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        sums, weights = self._terms(out, y)
        return sums, torch.ones_like(sums) if self.module.reduction == "sum" else weights

    def batch(self, out: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        sums, weights = self._terms(out, y)
        total, below = (sums * mask).sum(), (weights * mask).sum()
        return total if self.module.reduction == "sum" else total / torch.where(below > 0, below, 1.0)

    def _terms(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        weight, ignored = self.module.weight, self.module.ignore_index
        logits = isinstance(self.module, nn.CrossEntropyLoss)
        log_p = F.log_softmax(out, -1) if logits else out
        real, label = (y != ignored).to(out.dtype), torch.where(y == ignored, 0, y)
        weights = real if weight is None else real * weight[label]
        sums = -log_p.gather(-1, label[:, None]).squeeze(-1) * weights
        smoothing = self.module.label_smoothing if isinstance(self.module, nn.CrossEntropyLoss) else 0.0
        if smoothing:
            every = log_p if weight is None else log_p * weight
            sums = (1 - smoothing) * sums - smoothing * every.mean(-1) * real
        return sums, weights


@dataclass(frozen=True, eq=False)
class WholeBatch:
    """A loss that looks at its batch as a whole: contrasts, overlaps, weights of its own."""

    loss: Loss
    whole_because: str
    module: nn.Module | None = None
    separable: bool = False

    def examples(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        raise ConfigError(f"loss: no example has one of its own: {self.whole_because}.")

    def batch(self, out: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        if not bool(mask.any()):
            return out.sum() * 0.0
        real = mask > 0
        return self.loss(out[real], y[real]).mean()


def batch_loss(loss: Loss, out: Tensor, y: Tensor) -> BatchLoss:
    """A user's loss, in the first form that is exact; tried on outputs and targets such as it will get."""
    if not callable(loss):
        raise ConfigError(f"loss: must be a function of outputs and targets (got {type(loss).__name__}).")
    if isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters()):
        raise ConfigError("loss: has parameters of its own, which nobody would learn. Make them part of the model.")
    loss = copy.deepcopy(loss) if isinstance(loss, nn.Module) else loss  # it may go to another device
    known = _of_torch(loss) if y.ndim == 1 and not y.is_floating_point() else None
    if known is not None:
        known(out, y)
        return WeightedCrossEntropy(known)
    module, whole = loss if isinstance(loss, nn.Module) else None, _checked(loss, out, y)
    try:
        each = per_example_loss(loss, out, y)
    except Exception as e:  # the batch went well: it is an example alone, or vmap, that the loss cannot take
        return WholeBatch(loss, f"the loss cannot be taken example by example ({str(e).strip()[:100]})", module)
    parts = [(_checked(loss, out[s], y[s]), each[s]) for s in (slice(0, 3), slice(1, None, 2))]
    for reduction in ("mean", "sum"):
        over = torch.mean if reduction == "mean" else torch.sum
        if all(_alike(value, over(losses)) for value, losses in [(whole, each), *parts]):
            return ExampleLoss(partial(per_example_loss, loss), reduction, module)  # type: ignore[arg-type]
    return WholeBatch(loss, "the loss of a batch is not the mean of its examples' losses", module)


class OneLogit(nn.Module):
    """torch's binary cross-entropy of one output and the classes 0 and 1, which it wants as numbers."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, out: Tensor, y: Tensor) -> Tensor:
        return self.loss(out.reshape(y.shape), y.to(out.dtype))


def loss_of_one_logit(loss: Loss) -> Loss:
    """A user's loss for a model with one output for two classes; a function of one's own gets both as they are."""
    called = loss.func if isinstance(loss, partial) else loss
    if isinstance(called, nn.BCEWithLogitsLoss) or called is F.binary_cross_entropy_with_logits:
        return OneLogit(loss)
    if isinstance(called, nn.CrossEntropyLoss | nn.NLLLoss | nn.BCELoss) or called is F.cross_entropy:
        takes = "probabilities" if isinstance(called, nn.BCELoss) else "an output for each class"
        has = "and the model has one output for two classes, their logit"
        raise ConfigError(f"loss: this one takes {takes}, {has}. Use nn.BCEWithLogitsLoss().")
    return loss


def masked_mean(sums: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    """The mean over real examples."""
    return (sums * mask).sum() / (weights * mask).sum().clamp(min=1e-6)


def per_example_loss(loss: Loss, out: Tensor, y: Tensor) -> Tensor:
    """A user's scalar loss for every example: its mean over any real examples can then be taken."""
    return torch.func.vmap(lambda o, t: loss(o[None], t[None]).reshape(()))(out, y)


def _of_torch(loss: Loss) -> nn.CrossEntropyLoss | nn.NLLLoss | None:
    """torch's weighted means over classes; a subclass may do something else."""
    if isinstance(loss, partial) and loss.func is F.cross_entropy and not loss.args:
        return nn.CrossEntropyLoss(**loss.keywords) if set(loss.keywords) <= set(_CROSS_ENTROPY) else None
    return loss if type(loss) in (nn.CrossEntropyLoss, nn.NLLLoss) else None  # type: ignore[return-value]


def _checked(loss: Loss, out: Tensor, y: Tensor) -> Tensor:
    """The loss of a batch, or one for each example, whose mean is meant; what goes wrong is said to be its own."""
    try:
        value = loss(out, y)
    except (RuntimeError, TypeError, ValueError, IndexError) as e:
        what = f"outputs of shape {tuple(out.shape)} and targets of shape {tuple(y.shape)}"
        raise ConfigError(f"loss: failed on {what}: {e}") from e
    if not isinstance(value, Tensor):
        raise ConfigError(f"loss: gives a {type(value).__name__}, but must give a tensor with one number.")
    if value.numel() != 1 and value.shape != out.shape[:1]:
        raise ConfigError(
            f"loss: gives {tuple(value.shape)} for a batch of {len(out)}, but must give one number. "
            "Reduce it, e.g. nn.MSELoss() instead of nn.MSELoss(reduction='none')."
        )
    return value.detach().mean()


def _alike(a: Tensor, b: Tensor) -> bool:
    return bool(torch.allclose(a, b, rtol=_CLOSE, atol=_CLOSE / 10, equal_nan=True))
