"""A recipe followed on all groups at once: dummies, many steps down, and the best that each group came to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.attacks.leakage.assumed_task import BatchNormMode, assumed_algorithm
from atoll.attacks.leakage.batch_norm import Known, expected_statistics, statistics_of
from atoll.attacks.leakage.descent import Free, descent_for
from atoll.attacks.leakage.labels import recovered_labels
from atoll.attacks.leakage.matching import Matching
from atoll.attacks.leakage.observe import Observed
from atoll.attacks.leakage.pixels import Pixels01, dummies
from atoll.attacks.leakage.recipes import InversionRecipe
from atoll.attacks.leakage.simulate import stacked
from atoll.engines import arithmetic, default_budget
from atoll.errors import ConfigError
from atoll.tree import Tree

Labels = Literal["recovered", "known"]
Told = Callable[[int, int], None]  # so many steps are done, of so many
_COPIES = 12  # of a group's update that a step of the attack holds at a time, about


class Reconstruction(NamedTuple):
    """What an attacker believes of G groups: examples (G, m * n, *inputs), and labels (G, m * n)."""

    x: Tensor
    labels: Tensor
    distance: Tensor  # (G,) between the simulated update and the one that was seen


@dataclass(frozen=True)
class Inversion:
    """How a recipe is followed here."""

    recipe: InversionRecipe
    steps: int
    labels: Labels = "recovered"
    statistics: Known = "running"
    batch_norm: BatchNormMode = "training"  # as the attacker takes it to be at the client
    seed: int = 0
    stack: int | None = None  # groups at a time; None: as many as fit in memory


def reconstruct(seen: Observed, attack: Inversion, pixels: Pixels01, told: Told) -> Reconstruction:
    """All groups, so many at a time as are asked for: what comes of one does not depend on the others."""
    _check(seen)
    labels = _labels(seen, attack, pixels)
    G, at_a_time = len(seen.victims), attack.stack or _fitting(seen, attack.recipe)
    parts, whole = [], -(-G // at_a_time) * attack.steps
    with arithmetic(seen.device, seen.setup.choice.precision):
        for number, first in enumerate(range(0, G, at_a_time)):
            groups, before = slice(first, first + at_a_time), number * attack.steps
            some = None if labels is None else labels[groups]
            parts.append(_some(seen.part(groups), some, attack, pixels, lambda n, b=before: told(b + n, whole)))  # type: ignore[misc]
    x, found, distance = (torch.cat(column) for column in zip(*parts, strict=True))
    return Reconstruction(x, found, distance)


def _labels(seen: Observed, attack: Inversion, pixels: Pixels01) -> Tensor | None:
    if attack.recipe.joint_labels:
        return None
    return seen.victims.y if attack.labels == "known" else recovered_labels(seen, pixels, attack.seed)


def _some(
    seen: Observed, labels: Tensor | None, attack: Inversion, pixels: Pixels01, told: Callable[[int], None]
) -> Reconstruction:
    recipe, seeds = attack.recipe, attack.recipe.seeds
    matching, evidence = _matching(seen, attack)
    free = _start(seen, attack)
    wide = tree.map(lambda x: x.repeat_interleave(seeds, 0), evidence)  # the seeds of a group side by side
    fixed = None if labels is None else labels.repeat_interleave(seeds, 0)
    gradient = stacked(lambda free, fixed, evidence: matching.objective(free[0], _y(free, fixed), evidence))
    judged = stacked(lambda free, fixed, evidence: matching.distance(free[0], _y(free, fixed), evidence))
    held = fixed if fixed is not None else torch.zeros(len(free[0]), device=seen.device)
    step, best = descent_for(recipe), _Best(free)
    for number in range(attack.steps):
        if recipe.consistency and seeds > 1:
            wide = {**wide, "centre": _centre(free[0], seeds)}
        direction, value = gradient(free, held, wide)
        best = best.better(free, value)
        free = step(free, direction, recipe.rate(number, attack.steps))
        free = (pixels.clamp(free[0]), *free[1:]) if recipe.boxed else free
        told(number + 1)
    best = best.better(free, gradient(free, held, wide)[1])
    distance = judged(best.free, held, wide)[1]
    return _picked(seen, best.free, fixed, distance, seeds, pixels)


class _Best:
    """What each group came to where its objective was lowest: a descent may leap away from it."""

    def __init__(self, free: Free, value: Tensor | None = None) -> None:
        self.free = free
        self.value = torch.full((len(free[0]),), torch.inf, device=free[0].device) if value is None else value

    def better(self, free: Free, value: Tensor) -> _Best:
        lower = value < self.value
        shaped = (
            torch.where(lower.reshape(-1, *[1] * (a.dim() - 1)), a, b) for a, b in zip(free, self.free, strict=True)
        )
        return _Best(tuple(shaped), torch.where(lower, value, self.value))


def _matching(seen: Observed, attack: Inversion) -> tuple[Matching, Tree]:
    """The objective, and what was seen, leaves (G, ...)."""
    recipe = attack.recipe
    assumed = assumed_algorithm(seen.setup, recipe.joint_labels, attack.batch_norm)
    simulation = replace(seen.simulation, algorithm=assumed)
    evidence = {"target": seen.target, "work": seen.work(), "weights": seen.weights}
    if not recipe.batch_norm or not tree.leaves(simulation.sent["buffers"]):
        return Matching(simulation, recipe), evidence
    evidence["statistics"] = expected_statistics(seen, attack.statistics)
    return Matching(simulation, recipe, statistics_of(seen)), evidence


def _start(seen: Observed, attack: Inversion) -> Free:
    """Dummies from N(0, 1), and with them label logits where labels are looked for: seeds of a group side by side."""
    (m, n), inputs = seen.victims.held.shape[1:], seen.setup.dataset.inputs

    def drawn(name: str, shape: tuple[int, ...]) -> Tensor:
        keys = [rng.key(attack.seed, name, number) for number in range(attack.recipe.seeds)]
        each = torch.stack([dummies(seen.victims.ids, shape, key) for key in keys], 1)
        return each.reshape(-1, *shape).to(seen.device)

    x = drawn("dummy examples", (m, n, *inputs))
    return (x, drawn("dummy labels", (m, n, seen.setup.dataset.outputs))) if attack.recipe.joint_labels else (x,)


def _y(free: Free, fixed: Tensor) -> Tensor:
    return free[1].softmax(-1) if len(free) > 1 else fixed


def _centre(x: Tensor, seeds: int) -> Tensor:
    """The mean over the seeds of every group, for each of them: without registration, as pictures lie."""
    return x.reshape(-1, seeds, *x.shape[1:]).mean(1).repeat_interleave(seeds, 0)


def _picked(
    seen: Observed, free: Free, fixed: Tensor | None, distance: Tensor, seeds: int, pixels: Pixels01
) -> Reconstruction:
    """Of every group the seed that matches best."""
    G, m, n = seen.victims.held.shape
    distance = torch.where(distance.isfinite(), distance, torch.inf).reshape(G, seeds)
    best = distance.argmin(1) + torch.arange(G, device=distance.device) * seeds
    x = pixels.clamp(torch.nan_to_num(free[0][best], nan=pixels.low))
    y = free[1][best].argmax(-1) if fixed is None else fixed[best]
    return Reconstruction(x.reshape(G, m * n, *x.shape[3:]), y.reshape(G, m * n), distance.amin(1))


def _fitting(seen: Observed, recipe: InversionRecipe) -> int:
    """How many groups fit in memory at a time."""
    G, m = seen.weights.shape
    steps = seen.victims.plan.shape[2]
    one = tree.nbytes(seen.target) // G * m * recipe.seeds * (_COPIES + 4 * steps)
    one += seen.victims.x[0].numel() * 4 * recipe.seeds * 64 * steps  # activations, a guess
    return max(1, min(G, default_budget(seen.device) // max(1, one)))


def _check(seen: Observed) -> None:
    setup = seen.setup
    if setup.dataset.kind != "classification":
        raise ConfigError(
            f"--method: this attack needs classes, and {setup.dataset.name} is {setup.dataset.kind}. Use --method fc."
        )
    if setup.example_privacy is not None:
        raise ConfigError(
            "--method: with [local.privacy] a client's gradients are noisy inside, which this attack cannot simulate. "
            "Use --method fc, which needs no simulation."
        )
    if seen.round > 1 and tree.leaves(seen.simulation.own):
        raise ConfigError(
            f"--round: {setup.experiment.algorithm['name']} keeps something with its clients, which the attacker knows "
            "only before it first took part. Inversion round 1."
        )
