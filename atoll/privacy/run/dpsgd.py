"""[local.privacy]: from the table to a private task, and to what a run says of its examples' privacy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import torch

from atoll.core import Algorithm, Model, Task
from atoll.data import Dataset, Population
from atoll.errors import ConfigError
from atoll.privacy import DpSgdPlan
from atoll.privacy.run.descriptions import QUICK_BOUND, PrivacyBlock
from atoll.privacy.run.leak_check import check_algorithm
from atoll.privacy.run.tables import LocalPrivacyTable
from atoll.tasks import PrivateTask, Supervised, ghost_layers, unsupported_parts

MakeAlgorithm = Callable[[Task], Algorithm]


class LocalOptions(Protocol):
    """[local]: one client's training in one round."""

    @property
    def epochs(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def shuffle(self) -> bool: ...
    @property
    def max_steps(self) -> int | None: ...
    @property
    def privacy(self) -> LocalPrivacyTable | None: ...


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
    _epsilons: dict[int, tuple[float, int | None]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def epsilon_after(self, rounds: int) -> float | None:
        """An upper bound after so many rounds, quick enough for every line of a record; None without noise."""
        if self.noise_multiplier == 0:
            return None
        loose = self.plan.bound(self.noise_multiplier, rounds, self.delta)
        return min(loose, self._whole_run[0]) if rounds <= self.rounds else loose

    def block(self, rounds: int, quick: bool = False) -> PrivacyBlock:
        """What run.json says after so many rounds, of the client for whom it is worst. `quick`: an upper bound."""
        guarantee: PrivacyBlock = {"holds": self.noise_multiplier > 0}
        if self.noise_multiplier == 0:
            guarantee["why"] = "local.privacy.noise_multiplier is 0, so there is no noise."
        else:
            epsilon, n = (self.epsilon_after(rounds), self._whole_run[1]) if quick else self._worst_client(rounds)
            guarantee |= {"epsilon": epsilon, "delta": self.delta, "sampler": self._describe_sampler(n)}
        block = guarantee | {
            "unit": "example",
            "adjacency": self.plan.adjacency,
            "mechanism": f"DP-SGD in each client, max_norm {self.table.max_norm:g}, "
            f"noise multiplier {self.noise_multiplier:.6g}",
            "accountant": QUICK_BOUND if quick else self.plan.accountant(self.noise_multiplier, rounds).name,
            "rounds": rounds,
            "assumed": self._assumptions(),
        }
        if self.table.epsilon is not None:
            block["calibrated"] = {"epsilon": self.table.epsilon, "delta": self.delta}
        return block

    @cached_property
    def _whole_run(self) -> tuple[float, int | None]:
        return self._worst_client(self.rounds)

    def _worst_client(self, rounds: int) -> tuple[float, int | None]:
        if rounds not in self._epsilons:
            self._epsilons[rounds] = self.plan.worst(self.noise_multiplier, rounds, self.delta)
        return self._epsilons[rounds]

    def _describe_sampler(self, n: int | None) -> str:
        if n is None:
            return "no client has examples"
        if self.plan.sampling == "shuffled":
            return f"shuffled batches, {self.plan.epochs_begun(n)} epochs a round over the {n} examples of a client"
        scheme = "poisson" if self.plan.sampling == "poisson" else "fixed size"
        return f"{scheme}, {self.plan.batch_size(n)} of {n} examples in each of {self.plan.steps(n)} steps a round"

    def _assumptions(self) -> list[str]:
        by_sampling = {
            "shuffled": "the batches of an epoch are disjoint, so an epoch is one Gaussian; no amplification",
            "poisson": "amplified by Poisson sampling of examples in every step",
            "fixed": "amplified by sampling examples without replacement in every step; replacing one moves a sum by "
            "twice the clip",
        }
        turns = "every round" if self.plan.min_separation == 1 else f"every {self.plan.min_separation}th round"
        assumptions = [
            by_sampling[self.plan.sampling],
            f"a client counts in {turns}; no amplification by the sampling of clients",
            "the number of a client's examples is public; recorded losses and metrics are not covered",
        ]
        if self.copies > 1:
            assumptions.append(f"one copy of an example: the clients' data hold a row up to {self.copies} times")
        return assumptions


def make_example_privacy(
    local: LocalOptions,
    rounds: int,
    dataset: Dataset,
    task: Supervised,
    model: Model,
    population: Population,
    min_separation: int,
    make_algorithm: MakeAlgorithm,
) -> ExamplePrivacy | None:
    """What [local.privacy] asks for, its noise found; None without that table."""
    table = local.privacy
    if table is None:
        return None
    largest = int(population.sizes.max()) if population.size else 0
    delta = table.delta if table.delta is not None else 0.1 / max(1, largest)
    _check(local, table, task, delta, largest)
    sizes = tuple(torch.unique(population.sizes).tolist())
    plan = DpSgdPlan(sizes, local.batch, local.epochs, local.max_steps, table.sampling, min_separation)
    size, ghost = float(min(local.batch, largest) or 1), ghost_layers(task)
    private = PrivateTask(task, table.max_norm, 0.0, size, local.batch == 0, task.keyed, ghost)
    check_algorithm(make_algorithm, dataset, private, model, table.sampling == "poisson")
    if table.epsilon is not None:
        noise_multiplier = plan.noise(table.epsilon, delta, rounds)
    else:
        noise_multiplier = float(table.noise_multiplier or 0.0)
    return ExamplePrivacy(
        replace(private, noise_multiplier=noise_multiplier),
        table,
        plan,
        noise_multiplier,
        delta,
        rounds,
        _max_copies(population),
    )


def _check(local: LocalOptions, table: LocalPrivacyTable, task: Supervised, delta: float, largest: int) -> None:
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
    if table.sampling != "shuffled" and not local.shuffle:
        problems.append(
            f"local.shuffle: false keeps the order of examples, and local.privacy.sampling = {table.sampling!r} draws "
            "every batch. Leave shuffle out, or use sampling = 'shuffled'."
        )
    problems += unsupported_parts(task)
    if problems:
        raise ConfigError(problems)


def _max_copies(population: Population) -> int:
    rows = population.partition.indices
    return int(torch.unique(rows, return_counts=True)[1].max()) if len(rows) else 1


def _below(x: float) -> float:
    """Rounded down to one digit."""
    place = 10.0 ** math.floor(math.log10(x))
    return math.floor(x / place + 1e-9) * place
