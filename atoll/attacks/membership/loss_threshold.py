"""Losses of a finished run's model on those who took part and on others (Yeom et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll import rng, tree
from atoll.core import Model
from atoll.data import Partition
from atoll.engines import measure
from atoll.errors import ConfigError, RecordError
from atoll.experiment import Device, Experiment, Setup, set_up
from atoll.records import RunFolder, ended
from atoll.tree import Tree

Level = Literal["example", "client"]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A run that has ended, set up again from what its folder says."""

    folder: RunFolder
    info: dict[str, Any]
    record: list[dict[str, Any]]
    setup: Setup

    @classmethod
    def open(cls, path: Path | str, device: Device = "auto") -> FinishedRun:
        """Refuses what is no run, has not ended, or cannot be set up as it was."""
        folder = RunFolder(Path(path))
        info = folder.info
        if not ended(info):
            raise RecordError(f"{folder.path}: has not finished ({info['status']}). Go on with it (--resume) first.")
        setup = set_up(Experiment.parse(info["experiment"]), device)
        if setup.partition.digest() != info.get("partition", {}).get("digest"):
            raise RecordError(
                f"{folder.path}: its clients cannot be made again: the data or the program has changed since. "
                "Run the experiment again, then audit that run."
            )
        if setup.algorithm.traits().partial:
            raise ConfigError(
                f"{folder.path}: {info['label']} keeps a part of the model with the clients, so the run released no "
                "whole model to attack. Audit a run whose server has one."
            )
        return cls(folder, info, folder.record(), setup)

    def model(self) -> Model:
        return model_in(self.folder, self.setup)


class Scores(NamedTuple):
    """High where the attacker believes in a member."""

    members: Floats
    others: Floats
    note: str


def model_in(folder: RunFolder, setup: Setup) -> Model:
    """model.pt as the task takes it."""
    state, like = folder.model(), setup.model
    wrong = [k for part in like.values() for k, x in part.items() if k not in state or state[k].shape != x.shape]
    if wrong:
        raise RecordError(f"{folder.model_path}: has no {wrong[0]!r} of the right shape. Run it again.")
    whole: Model = {name: {k: state[k].to(x) for k, x in part.items()} for name, part in like.items()}
    return whole


def losses(setup: Setup, columns: Tree, model: Model, rows: Tensor | None = None) -> Floats:
    """The model's mean loss on each of these rows (None: all)."""
    found = measure(setup.task, setup.dataset.decode, columns, model, rows, setup.experiment.evaluate.batch)
    each: Floats = found["loss"] / np.maximum(found["weight"], 1.0)  # a text without a target has a loss of 0
    return each


def by_client(partition: Partition, rows: Tensor, values: Floats) -> Floats:
    """Every client's mean of values given for rows (rising); NaN for a client without rows."""
    at = np.searchsorted(rows.numpy(), partition.indices.numpy())
    sums = np.bincount(partition.owners().numpy(), values[at], partition.size)
    with np.errstate(invalid="ignore"):
        mean: Floats = sums / partition.sizes.numpy()
    return mean


def loss_scores(run: FinishedRun, level: Level) -> Scores:
    """Minus the loss: of examples, or the mean over a client's training examples."""
    return _examples(run) if level == "example" else _clients(run)


def took_part(record: list[dict[str, Any]]) -> list[Tensor]:
    """Who trained in each round, without those who were dropped."""
    return [
        torch.tensor([c for c in line["cohort"]["ids"] if c not in set(line.get("dropped", ()))], dtype=torch.int64)
        for line in record
    ]


def _examples(run: FinishedRun) -> Scores:
    setup = run.setup
    train = tree.to(setup.dataset.train, setup.device)
    seen = _seen(run)
    if not len(seen):
        raise ConfigError("--level: nobody took part in this run, so it has no members. Use --attack lira.")
    if setup.held is not None:
        held = torch.unique(setup.held.indices)
        rows = held[~torch.isin(held, torch.unique(setup.training.indices))]
        columns, where = train, "examples held out of the clients' training"
    elif setup.dataset.test is not None:
        rows, columns = torch.arange(len(setup.dataset.test["y"])), tree.to(setup.dataset.test, setup.device)
        where = "the test data, taken as drawn like the training data"
    else:
        raise ConfigError(
            "--attack: this run has no test data and held nothing out, so there are no others to compare with. "
            "Run it with evaluate.holdout = 0.2, or use --attack lira."
        )
    model = run.model()
    inside, outside = losses(setup, train, model, seen), losses(setup, columns, model, rows)
    return Scores(-inside, -outside, f"members: training examples of clients that took part; others: {where}")


def _seen(run: FinishedRun) -> Tensor:
    """The rows that somebody trained on, rising."""
    population, seed = run.setup.population, run.setup.experiment.seed
    rounds = took_part(run.record)
    if population.max_steps is None:
        ids = torch.cat([*rounds, torch.zeros(0, dtype=torch.int64)])
        rows: Tensor = torch.unique(population.partition.indices[torch.isin(population.partition.owners(), ids)])
        return rows
    found = [torch.zeros(0, dtype=torch.int64)]
    for number, ids in enumerate(rounds):  # some rows of a client that took part may never have come
        cohort = population.cohort(ids, rng.key(seed, "round", number, "order"))
        found.append(torch.unique(cohort.plan[torch.arange(cohort.plan.shape[2]) < cohort.count[..., None]]))
    rows = torch.unique(torch.cat(found))
    return rows


def _clients(run: FinishedRun) -> Scores:
    setup = run.setup
    if setup.algorithm.traits().pooled:
        raise ConfigError("--level: all data is pooled in this run, so there are no clients. Use --level example.")
    ids = torch.unique(torch.cat([*took_part(run.record), torch.zeros(0, dtype=torch.int64)]))
    inside = np.isin(np.arange(setup.training.size), ids.numpy())
    if inside.sum() < 2 or (~inside).sum() < 2:
        raise ConfigError(
            f"--level: {int(inside.sum())} of {len(inside)} clients took part, so there are too few "
            f"{'members' if inside.sum() < 2 else 'others'} to compare with. Use --attack lira: it leaves clients out."
        )
    rows = torch.unique(setup.training.indices)
    columns = tree.to(setup.dataset.train, setup.device)
    each = by_client(setup.training, rows, losses(setup, columns, run.model(), rows))
    note = "members: clients that took part; others: clients that were never drawn; by mean loss on their own examples"
    return Scores(-each[inside], -each[~inside], note)
