"""Objectives: losses and measured columns of a model's outputs (logits, predictions), one row per example.

`losses` gives a sum and a weight per example, so that a masked mean over any group is sum / weight.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.errors import ConfigError
from atoll.tree import Tree

Loss = Callable[[Tensor, Tensor], Tensor]


class Objective(Protocol):
    """Turns outputs (logits, for classes and tokens) and targets into losses and measured columns."""

    def losses(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) sums and (B,) weights."""
        ...

    def columns(self, out: Tensor, y: Tensor) -> Tree:
        """What metrics are made of: (B,) each."""
        ...

    def refuse(self, out: Tensor, y: Tensor) -> str | None:
        """Why these outputs cannot be scored against these targets, if they cannot."""
        ...


@dataclass(frozen=True)
class Classification:
    """Cross-entropy of the logits over classes; `top` lists further k for top-k accuracy."""

    classes: int
    top: tuple[int, ...] = ()
    loss: Loss | None = None

    def losses(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        sums = _cross_entropy(out, y) if self.loss is None else per_example_loss(self.loss, out, y)
        return sums, torch.ones_like(sums)

    def columns(self, out: Tensor, y: Tensor) -> Tree:
        sums, weight = self.losses(out, y)
        measured = {"weight": weight, "loss": sums, "correct": (out.argmax(-1) == y).float()}
        for k in self.top:
            measured[f"top{k}"] = (out.topk(min(k, self.classes), -1).indices == y[:, None]).any(-1).float()
        if self.classes == 2:
            measured |= {"score": out[:, 1] - out[:, 0], "label": y.float()}
        return measured

    def refuse(self, out: Tensor, y: Tensor) -> str | None:
        if out.dim() != 2 or out.shape[1] < self.classes:
            return f"the model's outputs are {tuple(out.shape)}; {self.classes} classes need (batch, {self.classes})"
        return None


@dataclass(frozen=True)
class Regression:
    """Squared error; mean over the outputs of an example."""

    loss: Loss | None = None

    def losses(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = out.reshape(y.shape)
        sums = _rowwise((out - y) ** 2) if self.loss is None else per_example_loss(self.loss, out, y)
        return sums, torch.ones_like(sums)

    def columns(self, out: Tensor, y: Tensor) -> Tree:
        sums, weight = self.losses(out, y)
        error = out.reshape(y.shape) - y
        return {"weight": weight, "loss": sums, "squared": _rowwise(error**2), "absolute": _rowwise(error.abs())}

    def refuse(self, out: Tensor, y: Tensor) -> str | None:
        if out.numel() != y.numel() or out.shape[0] != y.shape[0]:
            return f"the model's outputs are {tuple(out.shape)}, the targets {tuple(y.shape)}; they must agree"
        return None


@dataclass(frozen=True)
class NextToken:
    """Cross-entropy of every position's next token; targets of -100 do not count."""

    vocabulary: int
    ignored: int = field(default=-100)

    def losses(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        real = (y != self.ignored).float()
        per_token = _cross_entropy(out, y.clamp(min=0))
        return (per_token * real).sum(1), real.sum(1)

    def columns(self, out: Tensor, y: Tensor) -> Tree:
        sums, weight = self.losses(out, y)
        hits = ((out.argmax(-1) == y) & (y != self.ignored)).float().sum(1)
        return {"weight": weight, "loss": sums, "correct": hits}

    def refuse(self, out: Tensor, y: Tensor) -> str | None:
        if out.dim() != 3 or out.shape[:2] != y.shape or out.shape[2] < self.vocabulary:
            wanted = (*y.shape, self.vocabulary)
            return f"the model's outputs are {tuple(out.shape)}; next-token targets need {wanted}"
        return None


def per_example_loss(loss: Loss, out: Tensor, y: Tensor) -> Tensor:
    """A user's scalar loss for every example: its mean over any real examples can then be taken."""

    def single(o: Tensor, t: Tensor) -> Tensor:
        value = loss(o[None], t[None])
        if value.numel() != 1:
            raise ConfigError(
                f"loss: gives {tuple(value.shape)} for one example, but must give one number. "
                "Reduce it, e.g. nn.CrossEntropyLoss() instead of a loss over positions."
            )
        return value.reshape(())

    return torch.func.vmap(single)(out, y)


def _cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-log softmax(logits)[y]; torch's own spends as many kernels again on an ignore_index that is not needed here."""
    return -F.log_softmax(logits, -1).gather(-1, y[..., None]).squeeze(-1)


def _rowwise(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], -1).mean(1)
