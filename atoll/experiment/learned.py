"""What is learned, by whom and from what: the first half of putting an experiment together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from atoll import rng, tree
from atoll.algorithms import ALGORITHMS, keep_statistics_local
from atoll.core import Algorithm, Model, missing_hooks
from atoll.data import Dataset, Partition, noisy
from atoll.engines import ENGINES, Choice
from atoll.errors import ConfigError
from atoll.experiment.adapters import check_adapters, with_adapters
from atoll.experiment.defence_setup import public_examples, with_root
from atoll.experiment.experiment import Experiment
from atoll.experiment.measured import add_metrics, leading_metric
from atoll.experiment.module import SecondModels
from atoll.experiment.registry import build
from atoll.experiment.start import started_from
from atoll.experiment.task import make_task
from atoll.tasks import Loss, Metric, Supervised


@dataclass(frozen=True)
class HeldData:
    """Who holds which examples, and what of them is kept from training."""

    dataset: Dataset
    partition: Partition  # before anything was held out, with the server's client if it has one
    training: Partition
    for_metrics: Partition | None
    clients: int  # without the server's

    @property
    def named(self) -> dict[str, Any]:
        """What clients may be named by in a file."""
        return {"population": self.clients, "client_names": self.partition.client_names[: self.clients]}


def held_data(experiment: Experiment, dataset: Dataset, partition: Partition) -> HeldData:
    """The server's own share taken from the clients, noise on inputs drawn, and what is measured held out."""
    whole = with_root(experiment, partition)
    if (experiment.task.loss or {}).get("weight") == "balanced":
        dataset = replace(dataset, fitted=", ".join(filter(None, (dataset.fitted, "class counts"))))
    dataset = noisy(dataset, whole, rng.key(experiment.seed, "feature noise"))
    return HeldData(dataset, whole, *_held_out(experiment, whole), partition.size)


@dataclass(frozen=True)
class Learned:
    """What is learned, by which algorithm, and how it is measured."""

    task: Supervised
    model: Model
    choice: Choice
    algorithm: Algorithm
    algorithm_for: Callable[[Any], Algorithm]  # the same one for another task
    second: SecondModels
    metrics: dict[str, Metric]
    metric: str
    notes: list[str]


def learn_by(
    experiment: Experiment,
    held: HeldData,
    module: nn.Module,
    where: torch.device,
    loss: Loss | None,
    functions: Mapping[str, Any],
) -> Learned:
    """Build what a file says of the model, its loss and metrics, and the algorithm."""
    dataset, module = held.dataset, with_adapters(experiment, started_from(module, experiment.task.start))
    choice = build(ENGINES, experiment.engine, where="engine")
    task = make_task(experiment, dataset, module, loss)
    check_adapters(task, dataset)
    task.compute_dtype = torch.bfloat16 if choice.precision == "bfloat16" else None
    metrics = add_metrics(experiment, dataset, task, functions)
    metric, notes = leading_metric(experiment, dataset, metrics)
    model = tree.to(task.init(rng.key(experiment.seed, "init")), where)
    second = SecondModels(experiment, dataset, task, where, loss)
    public = public_examples(dataset, held.partition, held.clients, where)
    given: dict[str, Any] = {
        "population": held.clients,
        "public": public,
        "largest_client": int(held.training.sizes.max()),
    }

    def algorithm_for(task: Any) -> Algorithm:
        table, nested = experiment.algorithm, {"models": second}
        made: Algorithm = build(ALGORITHMS, table, where="algorithm", nested=nested, task=task, **given)
        return made

    algorithm = _whole(experiment, algorithm_for(task.to(where)))
    if model["buffers"] and experiment.task.batch_norm == "local":
        algorithm = keep_statistics_local(algorithm)
    return Learned(task, model, choice, algorithm, algorithm_for, second, metrics, metric, notes)


def _whole(experiment: Experiment, algorithm: Algorithm) -> Algorithm:
    """The algorithm, if it has all that is asked of one: a name may be an import path to anything."""
    missing = missing_hooks(algorithm)
    if missing:
        raise ConfigError(
            f"algorithm.name: {experiment.algorithm['name']!r} gives a {type(algorithm).__name__}, which has no "
            f"{missing[0]!r}. `atoll check {experiment.algorithm['name']}` says what an algorithm needs."
        )
    return algorithm


def _held_out(experiment: Experiment, partition: Partition) -> tuple[Partition, Partition | None]:
    share = experiment.evaluate.holdout
    if share == 0:
        return partition, None
    return partition.split(share, rng.key(experiment.seed, "holdout"))
