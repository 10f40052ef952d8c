"""Descents on a stack of groups: every group takes its own steps, and none looks at another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atoll.attacks.leakage.recipes import InversionRecipe

Free = tuple[Tensor, ...]  # what is looked for, axes (G, ...)
Step = Callable[[Free, Free, float], Free]
_BETAS, _EPS = (0.9, 0.999), 1e-8
_HISTORY = 20  # of L-BFGS


def descent_for(recipe: InversionRecipe) -> Step:
    """A new one of the recipe's kind: its memory starts empty."""
    if recipe.descent == "lbfgs":
        return StackedLbfgs()
    return StackedAdam(signed=recipe.descent == "signed_adam")


@dataclass
class StackedAdam:
    """Adam (Kingma and Ba, 2015), number by number; `signed`: of the gradient only the signs (Geiping et al., 2020)."""

    signed: bool = False
    _first: list[Tensor] = field(default_factory=list)
    _second: list[Tensor] = field(default_factory=list)
    _step: int = 0

    def __call__(self, free: Free, gradient: Free, lr: float) -> Free:
        gradient = tuple(g.sign() for g in gradient) if self.signed else gradient
        if not self._first:
            self._first, self._second = ([torch.zeros_like(g) for g in gradient] for _ in range(2))
        self._step += 1
        (a, b), t, new = _BETAS, self._step, []
        for i, (x, g) in enumerate(zip(free, gradient, strict=True)):
            self._first[i] = a * self._first[i] + (1 - a) * g
            self._second[i] = b * self._second[i] + (1 - b) * g * g
            size = (self._second[i] / (1 - b**t)).sqrt() + _EPS
            new.append(x - lr * self._first[i] / (1 - a**t) / size)
        return tuple(new)


@dataclass
class StackedLbfgs:
    """L-BFGS (Liu and Nocedal, 1989) with a fixed rate, as torch's without a line search; every group has its own."""

    _steps: list[Tensor] = field(default_factory=list)  # (G, P) each
    _changes: list[Tensor] = field(default_factory=list)
    _last: tuple[Tensor, Tensor] | None = None

    def __call__(self, free: Free, gradient: Free, lr: float) -> Free:
        x, g = _flat(free), _flat(gradient)
        if self._last is not None:
            self._remember(x - self._last[0], g - self._last[1])
        self._last = (x, g)
        first = not self._steps
        direction = self._direction(g)
        scale = (1.0 / g.abs().sum(1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0) if first else 1.0
        return _shaped(x - lr * scale * direction, free)

    def _remember(self, s: Tensor, y: Tensor) -> None:
        """A pair without curvature teaches nothing: for that group it is zero, and changes nothing."""
        curved = (s * y).sum(1, keepdim=True) > 1e-10
        self._steps.append(torch.where(curved, s, 0.0))
        self._changes.append(torch.where(curved, y, 0.0))
        del self._steps[:-_HISTORY], self._changes[:-_HISTORY]

    def _direction(self, g: Tensor) -> Tensor:
        """The two loops over what is remembered."""
        q, pairs, weights = g, list(zip(self._steps, self._changes, strict=True)), []
        for s, y in reversed(pairs):
            weights.append(_over((s * q).sum(1, keepdim=True), (s * y).sum(1, keepdim=True)))
            q = q - weights[-1] * y
        if pairs:
            s, y = pairs[-1]
            ratio = _over((s * y).sum(1, keepdim=True), (y * y).sum(1, keepdim=True))
            q = q * torch.where(ratio > 0, ratio, 1.0)
        for (s, y), a in zip(pairs, reversed(weights), strict=True):
            q = q + s * (a - _over((y * q).sum(1, keepdim=True), (s * y).sum(1, keepdim=True)))
        return q


def _over(a: Tensor, b: Tensor) -> Tensor:
    """A / b; 0 where b is 0."""
    return torch.where(b.abs() > 0, a / torch.where(b.abs() > 0, b, 1.0), 0.0)


def _flat(free: Free) -> Tensor:
    return torch.cat([x.reshape(len(x), -1) for x in free], 1)


def _shaped(flat: Tensor, like: Free) -> Free:
    parts = flat.split([x[0].numel() for x in like], 1)  # type: ignore[no-untyped-call]
    return tuple(part.reshape(x.shape) for part, x in zip(parts, like, strict=True))
