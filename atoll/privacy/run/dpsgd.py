"""[local.privacy]: from the table to a private task, and to what a run says of its examples' privacy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from atoll.core import Algorithm, Model, Task
from atoll.data import Dataset, Population
from atoll.errors import ConfigError
from atoll.experiment.experiment import Experiment, LocalPrivacyTable
from atoll.privacy.dpsgd_plan import DpSgdPlan
from atoll.privacy.run.leak_check import check_algorithm
from atoll.tasks import Supervised
from atoll.tasks.dp_sgd import PrivateTask
from atoll.tasks.ghost import ghost_layers
from atoll.tasks.layers import BatchNorm

Make = Callable[[Task], Algorithm]
QUICK = "quick bound"  # in the place of an accountant's name: an upper bound for a run that goes on


@dataclass(frozen=True)
class ExamplePrivacy:
    """What is promised to each example of each client; `task` is what keeps the promise."""

    task: PrivateTask
    table: LocalPrivacyTable
    plan: DpSgdPlan
    noise_multiplier: float
    delta: float
    rounds: int  # of the whole run
    copies: int = 1  # how often the data hold one row, at most
    _known: dict[int, tuple[float, int | None]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def epsilon_after(self, rounds: int) -> float | None:
        """An upper bound after so many rounds, quick enough for every line of a record; None without noise."""
        if self.noise_multiplier == 0:
            return None
        loose = self.plan.bound(self.noise_multiplier, rounds, self.delta)
        return min(loose, self._whole[0]) if rounds <= self.rounds else loose

    def block(self, rounds: int, quick: bool = False) -> dict[str, Any]:
        """What run.json says after so many rounds, of the client for whom it is worst. `quick`: an upper bound."""
        head: dict[str, Any] = {"holds": self.noise_multiplier > 0}
        if self.noise_multiplier == 0:
            head["why"] = "local.privacy.noise_multiplier is 0, so there is no noise."
        else:
            epsilon, n = (self.epsilon_after(rounds), self._whole[1]) if quick else self._worst(rounds)
            head |= {"epsilon": epsilon, "delta": self.delta, "sampler": self._sampler(n)}
        found = head | {
            "unit": "example",
            "adjacency": self.plan.adjacency,
            "mechanism": f"DP-SGD in each client, max_norm {self.table.max_norm:g}, "
            f"noise multiplier {self.noise_multiplier:.6g}",
            "accountant": QUICK if quick else self.plan.accountant(self.noise_multiplier, rounds).name,
            "rounds": rounds,
            "assumed": self._assumed(),
        }
        if self.table.epsilon is not None:
            found["calibrated"] = {"epsilon": self.table.epsilon, "delta": self.delta}
        return found

    @cached_property
    def _whole(self) -> tuple[float, int | None]:
        return self._worst(self.rounds)

    def _worst(self, rounds: int) -> tuple[float, int | None]:
        if rounds not in self._known:
            self._known[rounds] = self.plan.worst(self.noise_multiplier, rounds, self.delta)
        return self._known[rounds]

    def _sampler(self, n: int | None) -> str:
        if n is None:
            return "no client has examples"
        if self.plan.sampling == "shuffled":
            return f"shuffled batches, {self.plan.epochs_begun(n)} epochs a round over the {n} examples of a client"
        how = "poisson" if self.plan.sampling == "poisson" else "fixed size"
        return f"{how}, {self.plan.batch_size(n)} of {n} examples in each of {self.plan.steps(n)} steps a round"

    def _assumed(self) -> list[str]:
        notes = {
            "shuffled": "the batches of an epoch are disjoint, so an epoch is one Gaussian; no amplification",
            "poisson": "amplified by Poisson sampling of examples in every step",
            "fixed": "amplified by sampling examples without replacement in every step; replacing one moves a sum by "
            "twice the clip",
        }
        turns = "every round" if self.plan.min_separation == 1 else f"every {self.plan.min_separation}th round"
        found = [
            notes[self.plan.sampling],
            f"a client counts in {turns}; no amplification by the sampling of clients",
            "the number of a client's examples is public; recorded losses and metrics are not covered",
        ]
        if self.copies > 1:
            found.append(f"one copy of an example: the clients' data hold a row up to {self.copies} times")
        return found


def make_private(
    experiment: Experiment,
    dataset: Dataset,
    task: Supervised,
    model: Model,
    population: Population,
    min_separation: int,
    make: Make,
) -> ExamplePrivacy | None:
    """What [local.privacy] asks for, its noise found; None without that table. `make` builds the algorithm."""
    table, local = experiment.local.privacy, experiment.local
    if table is None:
        return None
    largest = int(population.sizes.max()) if population.size else 0
    delta = table.delta if table.delta is not None else 0.1 / max(1, largest)
    _check(experiment, table, task, delta, largest)
    sizes = tuple(torch.unique(population.sizes).tolist())
    plan = DpSgdPlan(sizes, local.batch, local.epochs, local.max_steps, table.sampling, min_separation)
    size, ghost = float(min(local.batch, largest) or 1), ghost_layers(task)
    private = PrivateTask(task, table.max_norm, 0.0, size, local.batch == 0, task.keyed, ghost)
    check_algorithm(make, dataset, private, model, table.sampling == "poisson")
    if table.epsilon is not None:
        noise_multiplier = plan.noise(table.epsilon, delta, experiment.rounds)
    else:
        noise_multiplier = float(table.noise_multiplier or 0.0)
    return ExamplePrivacy(
        replace(private, noise_multiplier=noise_multiplier),
        table,
        plan,
        noise_multiplier,
        delta,
        experiment.rounds,
        _copies(population),
    )


def _check(experiment: Experiment, table: LocalPrivacyTable, task: Supervised, delta: float, largest: int) -> None:
    problems = []
    if (table.noise_multiplier is None) == (table.epsilon is None):
        problems.append(
            "local.privacy: needs one of noise_multiplier and epsilon, and not both. Example: epsilon = 2.0"
        )
    if largest and delta > 1 / largest:
        problems.append(
            f"local.privacy.delta: {delta:g} is above 1 / {largest}, the examples of the largest client: with that, "
            f"giving an example away now and then would count as private. Use {_below(0.1 / largest):g} or less."
        )
    if table.sampling != "shuffled" and not experiment.local.shuffle:
        problems.append(
            f"local.shuffle: false keeps the order of examples, and local.privacy.sampling = {table.sampling!r} draws "
            "every batch. Leave shuffle out, or use sampling = 'shuffled'."
        )
    problems += _layers(task)
    if problems:
        raise ConfigError(problems)


def _layers(task: Supervised) -> list[str]:
    """What a model must not have: anything but gradients that examples leave a trace in."""
    norms = [m for m in task.model.modules() if isinstance(m, BatchNorm)]
    if any(not m.frozen or not m.tracked for m in norms):
        return [
            "task.batch_norm: BatchNorm mixes the examples of a batch and keeps their statistics, which local.privacy "
            "does not cover. Use task.batch_norm = 'group', or 'freeze'."
        ]
    if task.mutable_buffers:
        return [
            f"task.model: writes in its buffer {task.mutable_buffers[0]!r} while it trains, which local.privacy does "
            "not cover. Use a model that keeps nothing of its batches."
        ]
    return []


def _copies(population: Population) -> int:
    rows = population.partition.indices
    return int(torch.unique(rows, return_counts=True)[1].max()) if len(rows) else 1


def _below(x: float) -> float:
    """Rounded down to one digit."""
    place = 10.0 ** math.floor(math.log10(x))
    return math.floor(x / place + 1e-9) * place
