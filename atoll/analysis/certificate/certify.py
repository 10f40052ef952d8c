"""The vote of noisy models on the test data, and what CRFL's theorem makes of it (Xie et al., ICML 2021)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll import rng, tree
from atoll.errors import ConfigError, RecordError
from atoll.experiment import Device, Experiment, Setup, set_up
from atoll.records import RunFolder, ended, write_certificate
from atoll.rounds import CLIPPED, vote_counts
from atoll.stats import BackdoorThreat, certified_radius, vote_bounds
from atoll.tree import Tree

POINTS = 41  # of the curve
Floats = NDArray[np.float64]


def certify(path: Path | str, votes: int | None = None, device: Device = "auto", seed: int = 0) -> dict[str, Any]:
    """Certified accuracy against the size of a backdoor, written beside the run as certificate.json.

    An example counts at radius r where the vote gives it its class and no backdoor up to r changes that, but for a
    probability of alpha for each example. The attack is taken to be in the last round of [attack], else in the first,
    by no more attackers than server.crfl assumes.
    """
    folder = RunFolder(Path(path))
    info = folder.info
    if not ended(info):
        raise RecordError(f"{folder.path}: has not finished ({info['status']}). Go on with it (--resume) first.")
    experiment = Experiment.parse(info["experiment"])
    table = None if experiment.server is None else experiment.server.crfl
    if table is None:
        raise ConfigError(
            f"{folder.path}: was run without server.crfl, so that nothing is certified. Add it, run again."
        )
    number = table.votes if votes is None else votes
    if number < 1:
        raise ConfigError(f"--votes: must be 1 or more (got {number}).")
    setup = set_up(experiment, device)
    _check_attackers(setup, table.attackers)
    counts, labels = _vote(setup, folder, number, table.std, seed)
    done = int(folder.record()[-1]["round"])
    attacked, notes = _attacked_round(setup, done)
    rounds = done - attacked
    threat = BackdoorThreat(table.attackers, table.rate, table.lipschitz)

    @cache
    def radius(first: int, second: int) -> float:
        bounds = vote_bounds(first, second, number, table.alpha)
        return certified_radius(*bounds, table.max_norm, table.std, max(0, rounds), threat)

    top = counts.sort(1, descending=True).values[:, :2].tolist()
    right = (counts.argmax(1) == labels).numpy()
    radii = np.array([radius(*pair) for pair in top])
    found = {
        "votes": number, "alpha": table.alpha, "max_norm": table.max_norm, "std": table.std,
        "attackers": table.attackers, "rate": table.rate, "lipschitz": table.lipschitz,
        "attacked_round": attacked, "rounds_after": max(0, rounds), "examples": len(right),
        "accuracy": float(right.mean()), "curve": certified_curve(right, radii),
        "notes": notes,
    }  # fmt: skip
    write_certificate(folder.path, found)
    return found


def _check_attackers(setup: Setup, assumed: int) -> None:
    """What was run must be what the theorem speaks of."""
    if setup.attack is None:
        return
    together = min(len(setup.attack.ids), setup.participation.size or len(setup.attack.ids))
    if together > assumed:
        raise ConfigError(
            f"server.crfl.attackers: the certificate would be of attackers = {assumed}, and {together} clients attack "
            f"in this run. Set server.crfl.attackers = {together}, and run again."
        )


def _attacked_round(setup: Setup, done: int) -> tuple[int, list[str]]:
    """The last round of the attack, counted from 1, and what to know of those before it."""
    if setup.attack is None:
        return 1, []
    attack = setup.attack.attack
    last = done if attack.stop is None else min(attack.stop, done)
    many = last - attack.start + 1
    if many <= 1:
        return max(last, 1), []
    words = "the theorem is of one: the certificate holds for what is planted in the last of them, not for all together"
    return last, [f"[attack] attacked {many} rounds, and {words}."]


def certified_curve(right: NDArray[np.bool_], radii: Floats) -> list[list[float]]:
    """[radius, share of all examples that are right and certified to it], from 0 to the largest.

    >>> certified_curve(np.array([True, True, False]), np.array([2.0, 0.0, 2.0]))[::20]
    [[0.0, 0.666...], [1.0, 0.333...], [2.0, 0.333...]]
    """
    held = radii[right]
    largest = float(held.max(initial=0.0))
    grid = np.linspace(0.0, largest, POINTS if largest > 0 else 1)
    return [[float(r), float((held >= r).sum() / len(right))] for r in grid]


def _vote(setup: Setup, folder: RunFolder, votes: int, std: float, seed: int) -> tuple[Tensor, Tensor]:
    """(E, K) votes of each class, and the labels, on the host."""
    if setup.dataset.test is None or setup.dataset.kind != "classification":
        raise ConfigError("certify: votes are on test examples with classes, and this data set has none.")
    test = tree.to(setup.dataset.test, setup.device)
    model = _clipped(folder, setup)
    predict = _classes(setup, test, model["buffers"])
    key = rng.key(seed, "certificate").to(setup.device)
    counts = vote_counts(predict, model["params"], std, votes, int(setup.dataset.outputs), key)
    return counts.cpu(), setup.dataset.test["y"].long().cpu()


def _clipped(folder: RunFolder, setup: Setup) -> Tree:
    """The last model, clipped and without its last noise: that is what votes are drawn around."""
    state, like = folder.model(CLIPPED), setup.model
    return {name: {k: state[k].to(x) for k, x in part.items()} for name, part in like.items()}


def _classes(setup: Setup, test: Tree, buffers: Tree) -> Callable[[Tree], Tensor]:
    size, examples = setup.experiment.evaluate.batch, len(test["y"])
    key = torch.zeros(2, dtype=torch.int64, device=setup.device)
    slices = [slice(at, at + size) for at in range(0, examples, size)]
    decoded = [setup.dataset.decode({**tree.rows(test, s), "key": key}) for s in slices]
    batches: Sequence[Tree] = [{**one, "mask": torch.ones(len(one["y"]), device=setup.device)} for one in decoded]

    @torch.no_grad()
    def predicted(params: Tree) -> Tensor:
        scores = [setup.task.logits(params, buffers, batch, training=False) for batch in batches]
        return torch.cat(scores).argmax(1)

    return predicted
