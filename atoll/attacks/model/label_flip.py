"""Attacks on labels: the pictures are what they were, the classes are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from atoll import rng, tree
from atoll.core import Attack, Examples, Poison, Whole
from atoll.errors import ConfigError
from atoll.tree import Tree

Fraction = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Train on wrong labels, y -> classes - 1 - y, in `fraction` of the attackers' examples. Knows its own update.

    Its success is the share of test examples that get the flipped class (Tolpegin et al., 2020).
    """

    poisons: ClassVar[bool] = True

    fraction: Fraction = 1.0

    def poison(self, examples: Examples, attacker: Tensor, key: Tensor) -> Poison:
        chosen = drawn(key, len(attacker), self.fraction)
        return _labelled(examples, chosen, examples.classes - 1 - examples.columns["y"][chosen])

    def probe(self, test: Examples, key: Tensor) -> Tree:
        y = test.columns["y"]
        other = (test.classes - 1 - y != y).nonzero()[:, 0]
        return _labelled(test, other, test.classes - 1 - y[other]).columns


@dataclass(frozen=True)
class LabelSwap(Attack):
    """Train on examples of class `source` as if they were of class `target`. Knows its own update.

    A backdoor without a trigger: the class itself is one (semantic, Bagdasaryan et al., 2020). Its success is the share
    of test examples of `source` that are taken for `target`.
    """

    poisons: ClassVar[bool] = True

    source: Whole = 0
    target: Whole = 1
    fraction: Fraction = 1.0

    def poison(self, examples: Examples, attacker: Tensor, key: Tensor) -> Poison:
        self._check(examples)
        chosen = drawn(key, len(attacker), self.fraction)
        return self._as_target(examples, chosen[examples.columns["y"][chosen] == self.source])

    def probe(self, test: Examples, key: Tensor) -> Tree:
        self._check(test)
        return self._as_target(test, (test.columns["y"] == self.source).nonzero()[:, 0]).columns

    def _as_target(self, examples: Examples, places: Tensor) -> Poison:
        return _labelled(examples, places, places.new_full(places.shape, self.target))

    def _check(self, examples: Examples) -> None:
        check_class("source", self.source, examples.classes)
        check_class("target", self.target, examples.classes)
        if self.source == self.target:
            raise ConfigError(f"attack.target: is attack.source ({self.source}). Name another class.")


def check_class(option: str, value: int, classes: int) -> None:
    """Refuse a class that the data do not have."""
    if value >= classes:
        raise ConfigError(f"attack.{option}: there is no class {value}. Classes are 0..{classes - 1}.")


def drawn(key: Tensor, rows: int, fraction: float) -> Tensor:
    """The places of a fraction of so many rows: each on its own; 0 draws none and 1 all."""
    return (rng.uniform(rng.fold_name(key, "rows"), (rows,)) < fraction).nonzero()[:, 0]


def _labelled(examples: Examples, places: Tensor, labels: Tensor) -> Poison:
    columns = tree.rows(examples.columns, places)
    return Poison(places, {**columns, "y": labels.to(columns["y"].dtype)})
