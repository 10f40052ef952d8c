"""Backdoors: the model is right, but for a trigger that the attackers chose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from atoll.attacks.model.label_flip import Fraction, check_class, drawn
from atoll.attacks.model.trigger import bars, check_inputs, square, stamped
from atoll.core import AdversaryView, Attack, Count, Examples, Poison, Whole
from atoll.tree import Tree

Boost = Annotated[float, Field(gt=0)] | Literal["replacement"]


@dataclass(frozen=True)
class Backdoor(Attack):
    """White pixels mean class `target`, and the update is boosted (Bagdasaryan et al., 2020). Knows its own update.

    `fraction` of the attackers' examples carry a square of `size` pixels and the class `target`; their update is sent
    `boost` times: "replacement" is n / m for m attackers in a cohort of n, so that a plain mean is about their model.
    Success: the share of test examples of other classes that the trigger turns into `target`.
    """

    poisons: ClassVar[bool] = True

    target: Whole = 0
    fraction: Fraction = 0.5
    size: Count = 2
    boost: Boost = "replacement"

    @property
    def crafts(self) -> bool:
        return self.boost != 1

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        return boosted(seen, self.boost), state

    def poison(self, examples: Examples, attacker: Tensor, key: Tensor) -> Poison:
        mask = _mask(examples, self.target, lambda shape: square(shape, self.size))
        return stamped(examples, drawn(key, len(attacker), self.fraction), mask, self.target)

    def probe(self, test: Examples, key: Tensor) -> Tree:
        mask = _mask(test, self.target, lambda shape: square(shape, self.size))
        return stamped(test, _others(test, self.target), mask, self.target).columns


@dataclass(frozen=True)
class DistributedBackdoor(Attack):
    """A trigger of `parts` bars, each attacker trains on one of them (DBA: Xie et al., 2020). Knows its own update.

    Attacker j has part j modulo `parts`; success is measured with all parts together, as with backdoor.
    """

    poisons: ClassVar[bool] = True

    target: Whole = 0
    fraction: Fraction = 0.5
    size: Count = 2
    parts: Count = 4
    boost: Boost = 1.0

    @property
    def crafts(self) -> bool:
        return self.boost != 1

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        return boosted(seen, self.boost), state

    def poison(self, examples: Examples, attacker: Tensor, key: Tensor) -> Poison:
        masks = _mask(examples, self.target, lambda shape: bars(shape, self.size, self.parts))
        chosen = drawn(key, len(attacker), self.fraction)
        return stamped(examples, chosen, masks[attacker[chosen] % self.parts], self.target)

    def probe(self, test: Examples, key: Tensor) -> Tree:
        masks = _mask(test, self.target, lambda shape: bars(shape, self.size, self.parts))
        return stamped(test, _others(test, self.target), masks.any(0), self.target).columns


@dataclass(frozen=True)
class Neurotoxin(Attack):
    """A backdoor in numbers that others seldom change, so that it lasts (Zhang et al., 2022). Knows its own update.

    Of the attackers' update the `mask` share of numbers that the model's last change was largest in is set to zero. The
    paper projects every local step; here it is the sum of them, which is what the server sees.
    """

    poisons: ClassVar[bool] = True

    target: Whole = 0
    fraction: Fraction = 0.5
    size: Count = 2
    mask: Annotated[float, Field(ge=0, lt=1)] = 0.1
    boost: Boost = 1.0

    @property
    def crafts(self) -> bool:
        return self.boost != 1 or self.mask > 0

    def init(self, size: int) -> Tree:
        return {"last": torch.zeros(size)}

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        change, count = state["last"].abs(), int(self.mask * len(state["last"]))
        often = torch.zeros_like(change, dtype=torch.bool)
        often[change.topk(count).indices] = True
        often &= change > 0  # before the model has moved nothing is known
        return boosted(seen, self.boost).masked_fill(often.to(seen.own.device), 0.0), state

    def observe(self, aggregate: Tensor, state: Tree) -> Tree:
        return {"last": aggregate.to(state["last"].dtype)}

    def poison(self, examples: Examples, attacker: Tensor, key: Tensor) -> Poison:
        mask = _mask(examples, self.target, lambda shape: square(shape, self.size))
        return stamped(examples, drawn(key, len(attacker), self.fraction), mask, self.target)

    def probe(self, test: Examples, key: Tensor) -> Tree:
        mask = _mask(test, self.target, lambda shape: square(shape, self.size))
        return stamped(test, _others(test, self.target), mask, self.target).columns


def boosted(seen: AdversaryView, boost: float | str) -> Tensor:
    """What the attackers trained, so many times; "replacement": the cohort over the attackers in it."""
    factor = seen.cohort / max(1, len(seen.own)) if isinstance(boost, str) else boost
    return factor * seen.own


def _mask(examples: Examples, target: int, made: Callable[[torch.Size], Tensor]) -> Tensor:
    check_class("target", target, examples.classes)
    check_inputs(examples.columns["x"])
    x: Tensor = examples.columns["x"]
    return made(x.shape[1:])


def _others(test: Examples, target: int) -> Tensor:
    """The places of examples that are not of the wanted class."""
    places: Tensor = (test.columns["y"] != target).nonzero()[:, 0]
    return places
