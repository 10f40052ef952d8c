"""Runs of the same recipe on random halves of the data, and the likelihood ratio that they give (Carlini et al., 2022).

It audits the recipe, not the weights: targets and shadows are the run's experiment on halves, each with a seed of its
own, so that nothing that the recipe keeps secret (initial weights, order, noise) is known to the attacker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from atoll import rng, tree
from atoll.attacks import ENOUGH_SHADOWS, likelihood_ratio, logit_confidence
from atoll.attacks.membership.loss_threshold import FinishedRun, Floats, Level, Scores, by_client, losses, model_in
from atoll.attacks.membership.random_half import NAME, Half, Role, coins
from atoll.data import Partition
from atoll.errors import ConfigError, DivergenceError
from atoll.experiment import Device, Experiment, set_up, usual_partition
from atoll.privacy.run import metrics_read
from atoll.records import INTERRUPTED, RunFolder
from atoll.runs import Watcher, run_together, why_not_stackable
from atoll.runs import run as run_alone
from atoll.schedules import Schedule

Told = Callable[[str, float, int], None]  # at this level so many runs are done, of so many
_TRIES = 100  # seeds
_FEW = 8


@dataclass(frozen=True)
class ShadowRun:
    """One of the runs."""

    role: Role
    number: int
    experiment: Experiment
    half: Partition
    inside: NDArray[np.bool_]  # who is in it, of the audited units
    folder: Path


def silent(level: str, done: float, runs: int) -> None:
    """Show nothing."""


def lira_scores(
    run: FinishedRun,
    level: Level,
    shadows: int,
    targets: int,
    place: Path,
    device: Device = "auto",
    told: Told = silent,
) -> Scores:
    """Train what is not there yet in `place`, then score every unit in every target."""
    parts = plan(run, level, shadows, targets, place)
    _train(parts, device, lambda done: told(level, done, len(parts)))
    values = _statistics(run, level, parts)
    inside = np.stack([p.inside for p in parts])
    ratios = [likelihood_ratio(values[t], values[targets:], inside[targets:]) for t in range(targets)]
    found, member = np.concatenate(ratios), inside[:targets].reshape(-1)
    kind = "logit of the true class's probability" if _classes(run) else "minus loss"
    what = kind if level == "example" else f"mean {kind} over a client's examples"
    spread = "variances of each" if shadows >= 2 * ENOUGH_SHADOWS else "one variance for all"
    note = (
        f"the recipe, not the weights: {targets} target{'s' if targets > 1 else ''} on random halves of the "
        f"{level}s, {shadows} shadows; by {what}, {spread}"
    )
    return Scores(found[member], found[~member], note)


def plan(run: FinishedRun, level: Level, shadows: int, targets: int, place: Path) -> list[ShadowRun]:
    """Targets first, then shadows: experiments like the run's, but for who is in them and the seed."""
    if shadows < 4 or shadows % 2:
        raise ConfigError(f"--shadows: must be 4 or more, and even (got {shadows}): they come in complementary pairs.")
    if targets < 1:
        raise ConfigError(f"--targets: must be 1 or more (got {targets}).")
    if level == "client" and run.setup.algorithm.traits().pooled:
        raise ConfigError("--level: all data is pooled in this run, so there are no clients. Use --level example.")
    units = len(torch.unique(run.setup.training.indices)) if level == "example" else run.setup.training.size
    if units < _FEW:
        raise ConfigError(
            f"--level: {units} {level}s are too few to leave half of them out. {_FEW} or more are needed."
        )
    names: list[tuple[Role, int]] = [("target", i) for i in range(targets)]
    names += [("shadow", i) for i in range(shadows)]
    return [_part(run, level, role, number, place) for role, number in names]


def _part(run: FinishedRun, level: Level, role: Role, number: int, place: Path) -> ShadowRun:
    setup, experiment = run.setup, run.setup.experiment
    entry = experiment.partition or usual_partition(setup.dataset.name, setup.dataset.keys)
    half = Half(entry, experiment.seed, level, role, number, experiment.evaluate.holdout)
    left = half.half(setup.training, setup.dataset.examples)
    raw = experiment.complete()
    options = {k: getattr(half, k) for k in ("of", "seed", "level", "role", "number", "holdout")}
    raw |= {"partition": {"name": NAME, **options}, "label": f"{role} {number} ({level}s)", "on_divergence": "drop"}
    raw["evaluate"] = _evaluate(raw, setup.schedules())
    raw["seed"] = _seed(run, left, level, role, number)
    units = setup.dataset.examples if level == "example" else setup.training.size
    inside = coins(units, experiment.seed, level, role, number)
    if level == "example":
        inside = inside[torch.unique(setup.training.indices).numpy()]
    return ShadowRun(role, number, Experiment.parse(raw), left, inside, place / level / f"{role}-{number:03d}")


def _evaluate(raw: Mapping[str, Any], schedules: Sequence[Schedule]) -> dict[str, Any]:
    """Measure once, at the end, unless the recipe looks at its metrics on the way."""
    looks = "stop" in raw or any(metrics_read(s) for s in schedules)
    once = {} if looks else {"every": raw["rounds"], "clients": 0, "after": False}
    return {**raw["evaluate"], **once, "holdout": 0.0}  # the half is of what the run trained on


def _seed(run: FinishedRun, half: Partition, level: Level, role: Role, number: int) -> int:
    """The run's own, and one under which nobody's data is never a whole cohort's: its mean would be 0 / 0."""
    setup, rounds = run.setup, run.setup.experiment.rounds
    if setup.algorithm.traits().pooled:
        half = half.pool()
    for attempt in range(_TRIES):
        seed = int(rng.key(setup.experiment.seed, "audit", level, role, number, "seed", attempt)[0])
        key = rng.key(seed, "cohort")
        drawn = (setup.sampler.sample(setup.population.size, r, key)[0] for r in range(rounds))
        if all(bool((half.sizes_of(ids) > 0).any()) or not len(ids) for ids in drawn):
            return seed
    raise ConfigError(
        f"cohort: is so small that whole cohorts are among the {level}s left out, and their rounds have nothing to "
        "learn from. Use --attack loss, or audit a run with a larger cohort."
    )


def _train(parts: Sequence[ShadowRun], device: Device, told: Callable[[float], None]) -> None:
    """As one stack where that can be; what is done stays, and what was begun goes on."""
    shares = dict.fromkeys(range(len(parts)), 0.0)

    def watcher(i: int) -> Watcher:
        def watch(done: int, rounds: int, entry: Mapping[str, Any]) -> None:
            shares[i] = done / rounds
            told(sum(shares.values()))

        return watch

    experiments, folders = [p.experiment for p in parts], [p.folder for p in parts]
    if why_not_stackable(experiments) is None:
        ran = run_together(experiments, folders, resume=True, device=device, watch=[watcher(i) for i in shares])
    else:
        ran = []
        for i, (e, folder) in enumerate(zip(experiments, folders, strict=True)):
            ran.append(run_alone(e, folder, resume=True, device=device, watch=watcher(i)))
            if ran[-1].status == INTERRUPTED:
                break
    for one in ran:
        if one.error is not None:
            raise one.error
    if any(one.status == INTERRUPTED for one in ran):
        raise KeyboardInterrupt
    told(len(parts))


def _statistics(run: FinishedRun, level: Level, parts: Sequence[ShadowRun]) -> Floats:
    """Of every run (rows) and unit (columns)."""
    whole, dataset = run.setup.training, run.setup.dataset
    rows = torch.unique(whole.indices)
    columns = tree.to(dataset.train, run.setup.device)
    device: Device = "cuda" if run.setup.device.type == "cuda" else "cpu"
    found = []
    for part in parts:
        setup = set_up(part.experiment, device, dataset, part.half)  # what a model holds constant is of its own seed
        loss = losses(setup, columns, model_in(RunFolder(part.folder), setup), rows)
        if not np.isfinite(loss).all():
            raise DivergenceError(
                f"{part.folder}: on half of the data the recipe does not learn: its losses are not finite. "
                "Use --attack loss, or audit a run with a lower algorithm.lr."
            )
        value = logit_confidence(loss) if _classes(run) else -loss
        found.append(value if level == "example" else by_client(whole, rows, value))
    return np.stack(found)


def _classes(run: FinishedRun) -> bool:
    return run.setup.dataset.kind == "classification"
