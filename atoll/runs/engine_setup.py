"""What a driver is made of: the clients' memory, the engine, and what an engine runs on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from atoll import tree
from atoll.core import Job
from atoll.core.settings import resolve
from atoll.engines import AnyEngine, Choice, Ground, RowStore, Vector, client_bytes, make
from atoll.engines.program import batch_of
from atoll.engines.ranks import HomeRows, World, deal
from atoll.engines.ranks.world import cores
from atoll.experiment.setup import Setup
from atoll.tree import Tree


def on_device(setup: Setup) -> tuple[Tree, Tree | None]:
    """The columns of the training data, and of the test data if there is any, where they are needed."""
    test = setup.dataset.test
    return tree.to(setup.dataset.train, setup.device), None if test is None else tree.to(test, setup.device)


def store(setup: Setup, rows: Tree, budget: int, folder: Path, world: World) -> RowStore | HomeRows:
    """Every client's memory; on many ranks each holds that of the clients at home there."""
    population, device = setup.population, setup.device
    if world.size == 1 or not tree.leaves(rows):
        return RowStore(rows, population.size, device, budget, folder)
    homes = deal(population.steps(torch.arange(population.size)), world.size)
    return HomeRows(rows, homes, world, device, budget, folder)


def one_client(setup: Setup, columns: Tree, job: Job, rows: Tree) -> int:
    """The bytes that one client takes in a stack."""
    where = setup.device
    key = torch.zeros(2, dtype=torch.int64, device=where)
    plan, count = job.cohort.plan[0, 0].to(where), job.cohort.count[0, 0].to(where)
    batch = batch_of(setup.dataset.training_decode, columns, plan, count, key)
    now = resolve(setup.algorithm, 0, [])
    sent = tree.rows(job.sent, 0) if job.each else job.sent
    gradients = 2 * len(plan) if setup.example_privacy else 0  # one for every example
    each = gradients * tree.nbytes(setup.model["params"])
    return each + client_bytes(setup.task, setup.model, batch, now.start(sent, rows["algorithm"]), rows)


def ground(setup: Setup, columns: Tree) -> Ground:
    """What an engine runs on, and why clients cannot be stacked, where that is known beforehand."""
    task = setup.task
    noisy = setup.example_privacy is not None
    keyed = task.keyed or setup.dataset.augment is not None or noisy  # dropout, images, noise
    refused = None
    if task.is_stochastic:
        refused = "the model draws random numbers of its own (F.dropout instead of nn.Dropout?)"
    elif task.mutable_buffers:
        refused = f"the model changes its buffer {task.mutable_buffers[0]!r} in place"
    return Ground(columns, setup.dataset.training_decode, setup.device, keyed, refused)


def engine(choice: Choice, on: Ground, chunk: int, trial: Job, world: World) -> AnyEngine:
    """The engine asked for; on many ranks the one that rank 0 finds."""
    if world.size == 1:
        return make(choice, on, chunk, trial)
    choice = replace(choice, workers=choice.workers or max(1, cores() // world.local_size))
    made: list[AnyEngine] = []

    def decide() -> tuple[Any, str, int]:
        made.append(make(choice, on, chunk, trial))
        own = made[0].chunk if isinstance(made[0], Vector) else chunk
        return made[0].name, made[0].reason, own

    name, reason, own = world.first(decide)
    return made[0] if made else replace(make(replace(choice, name=name), on, own, trial), reason=reason)
