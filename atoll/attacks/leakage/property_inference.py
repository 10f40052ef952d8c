"""Has the victim a property? A linear classifier on the updates of shadow clients that have it or not.

Ateniese et al. (2015), Melis et al. (2019). The property here: a share of the client's examples is of one class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll import rng, tree
from atoll.attacks import judge
from atoll.attacks.leakage.observe import Observed, observe
from atoll.data import Partition
from atoll.errors import ConfigError
from atoll.experiment import Experiment, Setup, set_up
from atoll.tree import Tree

_RIDGE = 0.1  # of the mean square of an update
_CONFIDENCE_DELTA = 1e-5


@dataclass(frozen=True)
class ClassShare:
    """At least `share` of a client's examples are of class `label`."""

    label: int
    share: float

    def holds(self, y: Tensor, held: Tensor) -> Tensor:
        """(G,) bool, of labels (G, examples)."""
        return ((y == self.label) & held).sum(1) >= self.share * held.sum(1)

    def __str__(self) -> str:
        return f"at least {self.share:.0%} of the examples are of class {self.label}"


def property_attack(seen: Observed, wanted: ClassShare, shadows: int, seed: int) -> dict[str, Any]:
    """Scores of all victims, and how well they tell who has the property."""
    G, m = seen.weights.shape
    if m > 1:
        raise ConfigError("--method: 'property' asks single clients. With sums of several use --method labels.")
    truth = wanted.holds(seen.victims.y.reshape(G, -1), seen.victims.held.reshape(G, -1)).cpu().numpy()
    if truth.all() or not truth.any():
        which = "all" if truth.all() else "none"
        raise ConfigError(
            f"--property: {which} of {G} victims have it ({wanted}), so there is nothing to tell. "
            "Name another class or --share, or attack more victims."
        )
    setup, has = shadow_setup(seen, wanted, shadows, seed)
    theirs = observe(setup, len(has), broadcast=seen.simulation.sent, seed=seed)
    has = has[theirs.victims.ids[:, 0]]
    scores = ridge_scores(theirs.target, has, seen.target).cpu().numpy()
    found = judge(scores[truth], scores[~truth], _CONFIDENCE_DELTA)
    return {
        "property": str(wanted),
        "with": int(truth.sum()),
        "without": int((~truth).sum()),
        "auc": found.auc,
        "auc_interval": found.auc_interval,
        "accuracy": float(((scores > 0) == truth).mean()),
        "shadows": len(has),
        "scores": scores.tolist(),
    }


def shadow_setup(seen: Observed, wanted: ClassShare, shadows: int, seed: int) -> tuple[Setup, Tensor]:
    """Clients made of the test data, which victims never hold: half of them have the property."""
    setup, dataset = seen.setup, seen.setup.dataset
    if dataset.test is None or dataset.kind != "classification":
        raise ConfigError(
            "--method: 'property' makes its shadow clients of test data with classes, and there is none. "
            "Use data that has some, or --method labels."
        )
    size = int(seen.victims.examples.double().median())
    count = max(shadows, setup.population.size)
    rows, has = _shadow_rows(dataset.test["y"], wanted, size, count, rng.key(seed, "shadow clients"))
    partition = Partition(torch.arange(count + 1) * rows.shape[1], rows.reshape(-1), f"{count} shadow clients")
    raw = seen.setup.experiment.complete()
    raw["evaluate"] = {**raw["evaluate"], "holdout": 0.0, "clients": 0}
    theirs = replace(dataset, train=dataset.test, keys={}, client_names={}, ids=None)
    return set_up(Experiment.parse(raw), setup.device.type, theirs, partition), has


def _shadow_rows(y: Tensor, wanted: ClassShare, size: int, count: int, key: Tensor) -> tuple[Tensor, Tensor]:
    """(S, size) rows and who has the property: its shares are uniform on both sides of the threshold.

    Of the other classes every shadow has shares of its own, from Dirichlet(1/2): clients may be skewed in any way. Rows
    are drawn by them without replacement (Efraimidis and Spirakis, 2006).
    """
    of, others = (torch.nonzero(mask)[:, 0] for mask in (y == wanted.label, y != wanted.label))
    size = min(size, len(of), len(others))
    has = torch.arange(count) % 2 == 0
    u = rng.uniform(rng.fold_name(key, "share"), (count,)).numpy()
    least = max(1, int(np.ceil(wanted.share * size)))
    many = np.where(has.numpy(), least + np.floor(u * (size - least + 1)), np.floor(u * least)).astype(np.int64)
    classes = int(y.max()) + 1
    shares = rng.dirichlet(rng.fold_name(key, "classes"), torch.full((count, classes), 0.5))
    wait = -rng.uniform(rng.fold_name(key, "rows"), (count, len(y))).double().clamp(min=1e-12).log()
    mine = of[wait[:, of].argsort(1)]
    rest = others[(wait / shares[:, y].clamp(min=1e-9))[:, others].argsort(1)]
    place = torch.arange(size).expand(count, size)
    own = torch.from_numpy(many)[:, None]
    rows = torch.where(place < own, mine[:, :size], rest.gather(1, (place - own).clamp(min=0)))
    return rows, has


def ridge_scores(shadows: Tree, has: Tensor, updates: Tree) -> Tensor:
    """(G,) above 0 where the property is believed: ridge regression on updates, by their inner products."""
    mean = tree.map(lambda x: x.mean(0, keepdim=True), shadows)
    a, b = (tree.map(lambda x, c: (x - c).flatten(1).double(), part, mean) for part in (shadows, updates))
    pairs = list(zip(tree.leaves(a), tree.leaves(b), strict=True))
    inner = torch.stack([x @ x.T for x, _ in pairs]).sum(0)
    across = torch.stack([y @ x.T for x, y in pairs]).sum(0)
    target = (2.0 * has.double() - 1.0).to(inner.device)
    ridge = _RIDGE * inner.diagonal().mean() * torch.eye(len(inner), device=inner.device, dtype=inner.dtype)
    centre = target.mean()
    scores: Tensor = across @ torch.linalg.solve(inner + ridge, target - centre) + centre
    return scores
