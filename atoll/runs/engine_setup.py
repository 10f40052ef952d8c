"""What a run's engine is made of: the data on its device, the clients' state, and the choice of the engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from atoll import tree
from atoll.core import Engine, Train, resolve
from atoll.engines import (
    Choice,
    DeviceData,
    LocalEngine,
    RowStore,
    batch_of,
    client_bytes,
    default_budget,
    make,
    with_places,
)
from atoll.engines.ranks import Ranked, ShardedStore, World, cores, deal
from atoll.experiment import Setup
from atoll.runs.evaluate import evaluation_data
from atoll.tree import Tree


@dataclass(frozen=True, eq=False)
class Workplace:
    """An engine and what it was made with."""

    engine: Engine
    own: LocalEngine  # of this process
    choice: Choice
    chunk: int  # clients that fit at a time
    client_bytes: int  # that one client takes in a stack
    spills: bool  # is what clients keep in a file?
    spill_folder: Path


def on_device(setup: Setup) -> tuple[Tree, Tree | None]:
    """The columns of the training data, and of the test data if there is any, where they are needed."""
    test, train = setup.dataset.test, setup.dataset.train
    columns = train if setup.attack is None else setup.attack.columns(train)
    return tree.to(columns, setup.device), None if test is None else tree.to(test, setup.device)


def workplace(
    setup: Setup,
    columns: tuple[Tree, Tree | None],
    rows: Tree,
    trial: Train,
    choice: Choice,
    folder: Path,
    world: World,
    budget: int | None,
) -> Workplace:
    """The engine asked for; on many ranks each has one, of the kind that rank 0 finds."""
    whole = int(choice.memory_gb * 1e9) if choice.memory_gb else default_budget(setup.device) // world.sharing
    spill = Path(choice.spill) if choice.spill else folder
    store = _store(setup, rows, min(whole, budget or whole), spill, world)
    data = _device_data(setup, *columns)
    size = _one_client(setup, data, trial, rows)
    chunk = choice.chunk or max(1, whole // max(1, size))
    own = _engine(choice, data, store, chunk, trial, setup, world)
    engine = own if world.size == 1 else Ranked(own, world)
    chunk = own.choice().get("chunk", chunk)
    return Workplace(engine, own, choice, chunk, size, store.in_file, spill)


def _store(setup: Setup, rows: Tree, budget: int, folder: Path, world: World) -> RowStore | ShardedStore:
    """Every client's state; on many ranks each holds that of the clients at home there."""
    population, device = setup.population, setup.device
    if world.size == 1 or not tree.leaves(rows):
        return RowStore(rows, population.size, device, budget, folder)
    homes = deal(population.steps(torch.arange(population.size)), world.size)
    return ShardedStore(rows, homes, world, device, budget, folder)


def _device_data(setup: Setup, columns: Tree, test: Tree | None) -> DeviceData:
    """What an engine works on, and why clients cannot be stacked, where that is known beforehand."""
    tasks = (setup.task, *setup.second_models)
    needs = [task.step_needs() for task in (setup.training_task, *setup.second_models)]
    draws = setup.algorithm.traits().draws
    keyed = draws or any(need.key for need in needs) or setup.dataset.augment is not None  # dropout, noise, images
    mutable, stochastic = (
        [name for task in tasks for name in task.mutable_buffers],
        any(task.is_stochastic for task in tasks),
    )
    unstackable = next((need.whole_because for need in needs if need.whole_because), None)
    if stochastic:
        unstackable = "the model draws random numbers of its own (F.dropout instead of nn.Dropout?)"
    elif mutable:
        unstackable = f"the model changes its buffer {mutable[0]!r} in place"
    return DeviceData(
        with_places(columns, setup.population) if setup.algorithm.traits().places else columns,
        setup.dataset.training_decode,
        setup.device,
        setup.population,
        keyed,
        unstackable,
        stochastic,
        evaluation_data(setup, columns, test),
    )


def _one_client(setup: Setup, data: DeviceData, trial: Train, rows: Tree) -> int:
    """The bytes that one client takes in a stack."""
    where, width = setup.device, data.plan(trial).plan.shape[-1]  # of a batch; any rows will do
    key, rows_of_data = (torch.zeros(n, dtype=torch.int64, device=where) for n in (2, width))
    batch = batch_of(data.decode, data.columns, rows_of_data, torch.tensor(width, device=where), key)
    now = resolve(setup.algorithm, 0, [])
    sent = tree.rows(trial.sent, 0) if trial.per_client else trial.sent
    gradients = 2 * width if setup.training_task.step_needs().example_gradients else 0
    each = gradients * tree.nbytes(setup.model["params"])
    carry, shared = now.start(sent, rows["algorithm"]), setup.task.shared()
    return each + client_bytes(setup.task, setup.model, batch, carry, rows, shared)


def _engine(
    choice: Choice,
    data: DeviceData,
    store: RowStore | ShardedStore,
    chunk: int,
    trial: Train,
    setup: Setup,
    world: World,
) -> LocalEngine:
    if world.size == 1:
        return make(choice, data, store, chunk, trial, setup.task.original)
    choice = replace(choice, workers=choice.workers or max(1, cores() // world.local_size))
    made: list[LocalEngine] = []

    def decide() -> tuple[Any, list[str], int]:
        made.append(make(choice, data, store, chunk, trial, setup.task.original))
        return made[0].name, made[0].notes, made[0].choice().get("chunk", chunk)

    name, notes, own = world.on_rank_zero(decide)
    if made:
        return made[0]
    return replace(make(replace(choice, name=name), data, store, own, trial, setup.task.original), notes=list(notes))
