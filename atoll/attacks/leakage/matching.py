"""How far a simulated update is from the one that was seen, and what else a picture should be: of ONE group."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll import tree
from atoll.attacks.leakage.batch_norm import Statistics
from atoll.attacks.leakage.recipes import InversionRecipe
from atoll.attacks.leakage.simulate import Simulation
from atoll.tree import Tree


@dataclass(frozen=True, eq=False)
class Matching:
    """The objective of one group's examples (m, n, *inputs) and labels; `evidence` is what was seen of the group."""

    simulation: Simulation
    recipe: InversionRecipe
    statistics: Statistics | None = None  # of BatchNorm, of all examples of a group

    def distance(self, x: Tensor, y: Tensor, evidence: Tree) -> Tensor:
        """Of the updates alone."""
        found = self.simulation.mean(x, y, evidence["work"], evidence["weights"])
        pairs = list(zip(tree.leaves(found), tree.leaves(evidence["target"]), strict=True))
        long = _sum([(b * b).sum() for _, b in pairs])
        if self.recipe.distance == "l2":
            return _sum([((a - b) ** 2).sum() for a, b in pairs]) / long.clamp(min=1e-30)
        across = _sum([(a * b).sum() for a, b in pairs])
        own = _sum([(a * a).sum() for a, _ in pairs])
        return 1 - across / (own * long).clamp(min=1e-30).sqrt()

    def objective(self, x: Tensor, y: Tensor, evidence: Tree) -> Tensor:
        """With all that the recipe asks for."""
        recipe, value = self.recipe, self.distance(x, y, evidence)
        if recipe.tv and x.dim() >= 4:
            value = value + recipe.tv * total_variation(x)
        if recipe.norm:
            value = value + recipe.norm * (x * x).mean()
        if recipe.batch_norm and self.statistics is not None:
            gaps = tree.map(lambda a, b: ((a - b) ** 2).mean(), self.statistics(x, y), evidence["statistics"])
            value = value + recipe.batch_norm * _sum(tree.leaves(gaps))
        if recipe.consistency and "centre" in evidence:
            value = value + recipe.consistency * ((x - evidence["centre"]) ** 2).mean()
        return value


def total_variation(x: Tensor) -> Tensor:
    """The mean step between neighbouring pixels, down and across."""
    down, across = x.diff(dim=-2).abs(), x.diff(dim=-1).abs()
    return down.mean() + across.mean()


def _sum(values: list[Tensor]) -> Tensor:
    return torch.stack(values).sum()
