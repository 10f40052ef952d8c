"""From a checked experiment to the things it names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from atoll import rng, tree
from atoll.algorithms import ALGORITHMS
from atoll.algorithms.wrappers import LocalStatistics, Snapshot, Statistics
from atoll.config.defaults import usual_model, usual_partition
from atoll.config.experiment import Experiment
from atoll.config.registry import build
from atoll.core import Algorithm, Chain, Info, Model, Reducer, Spec
from atoll.core.settings import resolve, schedules
from atoll.data import DATA, PARTITIONS, SAMPLERS, Dataset, Partition, Population
from atoll.engines import ENGINES, Choice
from atoll.errors import ConfigError, DataError
from atoll.reducers import REDUCERS, Keep
from atoll.rounds import ROUNDS, Central, Gossip
from atoll.schedules import Schedule
from atoll.tasks import MODELS, Classification, NextToken, Objective, Regression, Supervised
from atoll.transforms import TRANSFORMS
from atoll.tree import Tree

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class Setup:
    """Everything a run needs, built and checked together; nothing has been trained or written yet."""

    experiment: Experiment
    dataset: Dataset
    partition: Partition  # who holds what, before anything was held out
    training: Partition  # what clients train on
    held: Partition | None  # what is kept for per-client metrics
    population: Population  # as the algorithm sees it (one client, if all data is pooled)
    sampler: Any
    task: Supervised
    model: Model
    algorithm: Algorithm
    chain: Chain  # as written: schedules unresolved, not bound
    reducer: Reducer
    topology: Central | Gossip
    choice: Choice
    device: torch.device
    snapshot: Snapshot
    statistics: Statistics | None
    notes: list[str] = field(default_factory=list)

    def spec(self) -> Spec:
        """What is certain about an update before the first transform."""
        return Keep().spec() if isinstance(self.topology, Gossip) else self.reducer.spec()

    def schedules(self) -> list[Schedule]:
        """Every schedule of the experiment."""
        return schedules(self.algorithm) + schedules(self.chain)

    def update_like(self) -> Tree:
        """Zeros in the shape of one client's update."""
        now = resolve(self.algorithm, 0, [])
        sent, memory = now.send(now.init(self.model)), now.memory(self.model)
        one = torch.ones((), device=self.device)
        info = Info(torch.zeros((), dtype=torch.int64, device=self.device), one, one)
        return tree.zeros_like(now.finish(now.start(sent, memory), sent, memory, info)[0].value)


def set_up(experiment: Experiment, device: Device = "auto") -> Setup:
    """Build what a file names."""
    dataset = build(DATA, experiment.data, where="data").check()
    return assemble(experiment, dataset, _partition(experiment, dataset), _module(experiment, dataset), device)


def assemble(
    experiment: Experiment, dataset: Dataset, partition: Partition, module: nn.Module, device: Device = "auto"
) -> Setup:
    """Put data, clients and a model together with what the experiment says of the rest."""
    where = find_device(device)
    training, held = _held_out(experiment, partition)
    objective = _objective(dataset, tuple(experiment.task.top_k))
    task = Supervised(module, objective, _example(dataset), experiment.task.batch_norm)
    model = tree.to(task.init(rng.key(experiment.seed, "init")), where)
    algorithm = build(
        ALGORITHMS, experiment.algorithm, where="algorithm", task=task.to(where), population=partition.size
    )
    statistics = None
    if model["buffers"] and experiment.task.batch_norm == "local":
        algorithm = LocalStatistics(algorithm)
    if model["buffers"] and experiment.task.batch_norm == "recompute":
        statistics = Statistics(task)
    pooled = getattr(algorithm, "pooled", False)
    local = experiment.local
    population = Population(
        training.pool() if pooled else training, local.batch, local.epochs, local.shuffle, local.max_steps
    )
    sampler = build(SAMPLERS, "everyone" if pooled else experiment.cohort, where="cohort")
    sampler.check(population.size)
    layers = tuple(build(TRANSFORMS, t, where=f"transform.{i}") for i, t in enumerate(experiment.transform))
    setup = Setup(
        experiment,
        dataset,
        partition,
        training,
        held,
        population,
        sampler,
        task,
        model,
        algorithm,
        Chain(layers),
        build(REDUCERS, experiment.reducer, where="reducer"),
        build(ROUNDS, experiment.round, where="round"),
        build(ENGINES, experiment.engine, where="engine"),
        where,
        Snapshot(algorithm),
        statistics,
        _notes(training, local.batch),
    )
    resolve(setup.chain, 0, []).bind(setup.spec())  # refuses what cannot hold
    setup.topology.init(resolve(algorithm, 0, []), model, 1)
    return setup


def find_device(name: Device) -> torch.device:
    """The device asked for, if it is there."""
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise ConfigError("device: 'cuda' was asked for, but torch sees no GPU here. Use device = 'cpu' or 'auto'.")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and there) else "cpu")


def _partition(experiment: Experiment, dataset: Dataset) -> Partition:
    entry = experiment.partition or usual_partition(dataset.name, dataset.keys)
    partitioner = build(PARTITIONS, entry, where="partition")
    key = rng.key(experiment.seed, "partition")
    found: Partition = partitioner(dataset.labels, dataset.keys, dataset.examples, key)
    return found


def _module(experiment: Experiment, dataset: Dataset) -> nn.Module:
    """The model, its weights drawn from the experiment's seed and nothing else."""
    entry = experiment.task.model or usual_model(dataset.kind, dataset.inputs)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(rng.key(experiment.seed, "init")))
        found: nn.Module = build(MODELS, entry, where="task.model", inputs=dataset.inputs, outputs=dataset.outputs)
    return found


def seed_of(key: Tensor) -> int:
    """A key as a seed for torch's own generator."""
    return (int(key[0]) << 31) ^ int(key[1])


def _held_out(experiment: Experiment, partition: Partition) -> tuple[Partition, Partition | None]:
    share = experiment.evaluate.holdout
    if share == 0:
        return partition, None
    return partition.split(share, rng.key(experiment.seed, "holdout"))


def _objective(dataset: Dataset, top_k: tuple[int, ...]) -> Objective:
    if dataset.kind == "classification":
        return Classification(dataset.outputs, top_k)
    return Regression() if dataset.kind == "regression" else NextToken(dataset.outputs)


def _example(dataset: Dataset) -> Tree:
    batch = dataset.decode(tree.rows(dataset.train, slice(0, 4)))
    if not isinstance(batch, dict) or "x" not in batch:
        raise DataError(f"data {dataset.name!r}, decode: must give a dict with 'x' and 'y'.")
    return {**batch, "mask": torch.ones(len(batch["y"]))}


def _notes(training: Partition, batch: int) -> list[str]:
    few = int((training.sizes < batch).sum())
    if not few:
        return []
    smallest = int(training.sizes.min())
    return [
        f"{few} of {training.size} clients have fewer examples than local.batch = {batch} (the smallest {smallest}): "
        "each of their epochs is one smaller batch."
    ]
