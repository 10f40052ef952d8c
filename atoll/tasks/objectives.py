"""Objectives: losses and measured columns of a model's outputs (logits, predictions), one row per example.

`losses` gives a sum and a weight per example, so that a masked mean over any group is sum / weight.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.core import class_logits, is_one_logit
from atoll.tasks.kernels import LinearScores, cross_entropy_rows, scores_cross_entropy
from atoll.tasks.losses import BatchLoss, ExampleLoss, WeightedCrossEntropy, masked_mean
from atoll.tree import Tree


def _class_loss(out: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of classes; of one logit, that of yes and no."""
    if is_one_logit(out):
        return F.binary_cross_entropy_with_logits(out.reshape(y.shape), y.to(out.dtype), reduction="none")
    return cross_entropy_rows(out, y)


def _squared_error(out: Tensor, y: Tensor) -> Tensor:
    return _rowwise((out - y) ** 2)


def _rowwise(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], -1).mean(1)


class Objective(Protocol):
    """Turns outputs (logits, for classes and tokens) and targets into losses and measured columns."""

    @property
    def loss(self) -> BatchLoss: ...

    @property
    def takes_linear_scores(self) -> bool:
        """May `batch_loss` be given the factors of the outputs in their place?"""
        ...

    def batch_loss(self, out: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """The loss of the real examples of a batch."""
        ...

    def losses(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) sums and (B,) weights."""
        ...

    def columns(self, out: Tensor, y: Tensor) -> Tree:
        """What metrics are made of: (B,) each."""
        ...

    def together(self, outs: Tensor) -> Tensor:
        """(M, B, ...) of several models as one's (B, ...): the mean of their probabilities, or of their outputs."""
        ...

    def refuse(self, out: Tensor, y: Tensor) -> str | None:
        """Why these outputs cannot be scored against these targets, if they cannot."""
        ...


@dataclass(frozen=True)
class Classification:
    """Cross-entropy of the logits over classes, or of two classes' one; `top` lists further k for top-k accuracy."""

    classes: int
    top: tuple[int, ...] = ()
    loss: BatchLoss = ExampleLoss(_class_loss)
    extra: frozenset[str] = frozenset()  # columns beyond the usual ones, that metrics ask for
    takes_linear_scores: ClassVar[bool] = False

    @property
    def is_cross_entropy(self) -> bool:
        """Is the loss the plain mean of it: no weights, no labels that are ignored, no smoothing?"""
        loss = self.loss
        if isinstance(loss, WeightedCrossEntropy):
            smooth = isinstance(loss.module, nn.CrossEntropyLoss) and loss.module.label_smoothing == 0
            return smooth and loss.separable
        return isinstance(loss, ExampleLoss) and loss.rows is _class_loss and loss.separable

    def batch_loss(self, out: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        return self.loss.batch(out, y, mask)

    def losses(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.loss.examples(out, y)

    def columns(self, out: Tensor, y: Tensor) -> Tree:
        logits = class_logits(out)
        correct = (logits.argmax(-1) == y).float()
        measured = {**_loss_columns(self, out, y), "correct": correct}
        for k in self.top:
            measured[f"top{k}"] = (logits.topk(min(k, self.classes), -1).indices == y[:, None]).any(-1).float()
        if self.classes == 2:
            measured |= {"score": logits[:, 1] - logits[:, 0], "label": y.float()}
        return {**measured, **self._extra(out, y)} if self.extra else measured

    def _extra(self, out: Tensor, y: Tensor) -> Tree:
        logits = class_logits(out)
        chances = logits.float().softmax(-1)
        one_hot = F.one_hot(y, logits.shape[1])
        squares = (chances - one_hot) ** 2
        known = {
            "predicted": logits.argmax(-1).float(),
            "label": y.float(),
            "confidence": chances.amax(-1),
            "brier": squares[:, 1] if self.classes == 2 else squares.sum(-1),
            **_families(out, y),
        }
        return known if "out0" in self.extra else {k: v for k, v in known.items() if k in self.extra}

    def together(self, outs: Tensor) -> Tensor:
        return _mean_chance(outs) if self.classes == 2 and is_one_logit(outs[0]) else _mean_chances(outs)

    def refuse(self, out: Tensor, y: Tensor) -> str | None:
        if self.classes == 2 and is_one_logit(out):
            return None
        if out.dim() != 2 or out.shape[1] < self.classes:
            need = f"{self.classes} classes need (batch, {self.classes}), and labels count from 0"
            return f"the model's outputs are {tuple(out.shape)}; {need}"
        return None


@dataclass(frozen=True)
class Regression:
    """Squared error; mean over the outputs of an example. `labels`: each output says whether a label is there."""

    loss: BatchLoss = ExampleLoss(_squared_error)
    extra: frozenset[str] = frozenset()
    labels: bool = False
    takes_linear_scores: ClassVar[bool] = False

    def batch_loss(self, out: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        return self.loss.batch(out.reshape(y.shape), y, mask)

    def losses(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.loss.examples(out.reshape(y.shape), y)

    def columns(self, out: Tensor, y: Tensor) -> Tree:
        out, usual = out.reshape(y.shape), _loss_columns(self, out, y)
        if self.labels:
            return {**usual, "correct": ((out > 0) == (y > 0)).all(-1).float(), **_families(out, y)}
        usual |= {"squared": _rowwise((out - y) ** 2), "absolute": _rowwise((out - y).abs())}
        return {**usual, **_families(out, y)} if "out0" in self.extra else usual

    def together(self, outs: Tensor) -> Tensor:
        return _mean_chance(outs) if self.labels else outs.mean(0)

    def refuse(self, out: Tensor, y: Tensor) -> str | None:
        if out.numel() != y.numel() or out.shape[0] != y.shape[0]:
            return f"the model's outputs are {tuple(out.shape)}, the targets {tuple(y.shape)}; they must agree"
        return None


@dataclass(frozen=True)
class NextToken:
    """Cross-entropy of every position's next token; targets of -100 do not count."""

    vocabulary: int
    ignored: int = field(default=-100)
    loss: BatchLoss = ExampleLoss(cross_entropy_rows)  # of every token; a sequence counts by its tokens
    takes_linear_scores: ClassVar[bool] = True

    def batch_loss(self, out: Tensor | LinearScores, y: Tensor, mask: Tensor) -> Tensor:
        return masked_mean(*self.losses(out, y), mask)

    def losses(self, out: Tensor | LinearScores, y: Tensor) -> tuple[Tensor, Tensor]:
        real = (y != self.ignored).float()
        per_token = scores_cross_entropy(out, y.clamp(min=0))
        return (per_token * real).sum(1), real.sum(1)

    def columns(self, out: Tensor, y: Tensor) -> Tree:
        sums, weight = self.losses(out, y)
        hits = ((out.argmax(-1) == y) & (y != self.ignored)).float().sum(1)
        return {"weight": weight, "loss": sums, "correct": hits}

    def together(self, outs: Tensor) -> Tensor:
        return _mean_chances(outs)

    def refuse(self, out: Tensor, y: Tensor) -> str | None:
        if out.dim() != 3 or out.shape[:2] != y.shape or out.shape[2] < self.vocabulary:
            wanted = (*y.shape, self.vocabulary)
            return f"the model's outputs are {tuple(out.shape)}; next-token targets need {wanted}"
        return None


def _mean_chances(outs: Tensor) -> Tensor:
    """The logarithm of the mean of softmax, whose softmax is that mean."""
    return torch.logsumexp(outs.float().log_softmax(-1), 0) - math.log(len(outs))


def _mean_chance(outs: Tensor) -> Tensor:
    """The logit of the mean of sigmoid."""
    yes, no = (torch.logsumexp(F.logsigmoid(z.float()), 0) for z in (outs, -outs))
    return yes - no


def _families(out: Tensor, y: Tensor) -> Tree:
    """All outputs and targets, a column each."""
    named = (("out", out.reshape(len(out), -1)), ("y", y.reshape(len(y), -1).float()))
    return {f"{name}{k}": column for name, x in named for k, column in enumerate(x.unbind(1))}


def _loss_columns(objective: Objective, out: Tensor, y: Tensor) -> Tree:
    """The loss of every example, where examples have one, and what it counts for, where they do not count alike."""
    one = torch.ones_like(y.reshape(len(y), -1)[:, 0], dtype=out.dtype)
    if objective.loss.whole_because:
        return {"weight": one}
    sums, weights = objective.losses(out, y)
    alike = isinstance(objective.loss, ExampleLoss)
    return {"weight": one, "loss": sums} if alike else {"weight": one, "loss": sums, "loss_weight": weights}
