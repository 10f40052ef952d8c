"""Edge-case backdoors: pictures that honest clients do not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from atoll import rng, tree
from atoll.attacks.model.backdoor import Boost, boosted
from atoll.attacks.model.label_flip import Fraction, check_class, drawn
from atoll.core import AdversaryView, Attack, Examples, Poison, Whole
from atoll.data import DATA, Dataset
from atoll.errors import ConfigError
from atoll.tree import Tree


@dataclass(frozen=True)
class EdgeCase(Attack):
    """Pictures from elsewhere are called `target` (Wang et al., 2020). Knows its own update.

    `fraction` of the attackers' examples are pictures of `source`, another data set (without it Quick, Draw!), perhaps
    of one class of it (`category`), in the size of the data. Half of these pictures is for training; success is the
    share of the other half that the model takes for `target`.
    """

    poisons: ClassVar[bool] = True

    target: Whole = 0
    fraction: Fraction = 0.5
    source: Dataset | None = None
    category: Whole | None = None
    boost: Boost = 1.0

    @property
    def crafts(self) -> bool:
        return self.boost != 1

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        return boosted(seen, self.boost), state

    def poison(self, examples: Examples, attacker: Tensor, key: Tensor) -> Poison:
        check_class("target", self.target, examples.classes)
        places = drawn(key, len(attacker), self.fraction)
        pictures = self._half(0, key)
        which = (rng.uniform(rng.fold_name(key, "pictures"), (len(places),)) * len(pictures)).long()
        x = as_inputs_of(examples, pictures[which.clamp(max=len(pictures) - 1)])
        columns = tree.rows(examples.columns, places)
        return Poison(places, {**columns, "x": x, "y": torch.full_like(columns["y"], self.target)})

    def probe(self, test: Examples, key: Tensor) -> Tree:
        x = as_inputs_of(test, self._half(1, key))
        columns = tree.rows(test.columns, torch.zeros(len(x), dtype=torch.int64))
        return {**columns, "x": x, "y": torch.full_like(columns["y"], self.target)}

    def _half(self, which: int, key: Tensor) -> Tensor:
        """Every second picture of a keyed order, scaled to 0..1, (n, C, H, W)."""
        source = DATA["quickdraw"]() if self.source is None else self.source
        x, y = source.train["x"], source.train["y"]
        if not isinstance(x, Tensor) or x.ndim != 4:
            raise ConfigError(f"attack.source: {source.name} has no pictures. Use quickdraw, mnist or fmnist.")
        if self.category is not None:
            check_class("category", self.category, source.outputs)
            x = x[y == self.category]
        order = rng.permutation(rng.fold_name(key, "halves"), len(x))[which::2]
        return x[order].float() / float(source.train["x"].max())


def as_inputs_of(examples: Examples, pictures: Tensor) -> Tensor:
    """Pictures (n, C, H, W) of 0..1 in the shape, the range and the type of these inputs."""
    x = examples.columns["x"]
    if not isinstance(x, Tensor) or x.ndim != 4:
        raise ConfigError("attack.name: edge_case puts pictures among pictures; these inputs are none. Use backdoor.")
    sized = functional.interpolate(pictures, size=tuple(x.shape[2:]), mode="area")
    coloured = sized.mean(1, keepdim=True).expand(-1, x.shape[1], -1, -1)
    return tree.cast_like(coloured * examples.high, x)
