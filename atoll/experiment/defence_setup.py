"""From a file to reducers, entries in entries among them; and to the data that a server holds itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Algorithm, Participation, PublicExamples, Reducer, Round
from atoll.data import Dataset, Partition
from atoll.errors import ConfigError
from atoll.experiment.experiment import Experiment
from atoll.experiment.registry import build
from atoll.reducers import REDUCERS
from atoll.rounds import Certified, WithRoot
from atoll.schema import Entry
from atoll.stats import BackdoorThreat

ROOT = "server"  # what the client is called that holds the server's rows


def make_reducer(entry: Entry, where: str, **given: Any) -> Reducer[Any]:
    """What the entry names; `given`, of the clients, reaches those inside of it, too."""
    nested = {"reducers": lambda inner, at: make_reducer(inner, at, **given)}
    made: Reducer[Any] = build(REDUCERS, entry, where=where, nested=nested, **given)
    return made


def root_share(experiment: Experiment) -> float | None:
    """The share of all rows that the server holds."""
    return None if experiment.server is None else experiment.server.root


def with_root(experiment: Experiment, partition: Partition) -> Partition:
    """The clients, each with less; and last one more, which holds what they gave: the server."""
    share = root_share(experiment)
    if share is None:
        return partition
    if partition.noise is not None or partition.groups is not None:
        raise ConfigError(
            "server.root: not with a partition whose clients have noise or groups of their own: what would the "
            "server's be? Use another partition, or leave server.root out."
        )
    kept, given = partition.split(share, rng.key(experiment.seed, "root"))
    rows = given.pool().indices
    if not len(rows):
        raise ConfigError(f"server.root: {share:g} of clients with one row each is nothing. Use larger clients.")
    names = (*partition.client_names, ROOT) if partition.client_names else ()
    offsets = torch.cat([kept.offsets, kept.offsets[-1:] + len(rows)])
    provenance = f"{kept.provenance} root({share})"
    return Partition(offsets, torch.cat([kept.indices, rows]), provenance, partition.left_out, client_names=names)


def public_examples(
    dataset: Dataset, partition: Partition, clients: int, device: torch.device
) -> PublicExamples | None:
    """The inputs that the server holds, if it holds any: of a partition whose first so many are clients."""
    if partition.size == clients:
        return None
    batch = dataset.decode(tree.rows(dataset.train, partition.of(clients)))
    return PublicExamples(tree.to({"x": batch["x"]}, device))


@dataclass(frozen=True)
class WithoutServer:
    """A sampler of all clients but the last, which is the server."""

    inner: Any

    def check(self, population: int) -> None:
        self.inner.check(population - 1)

    def sample(self, population: int, round: int, key: Tensor) -> tuple[Tensor, Participation]:
        found: tuple[Tensor, Participation] = self.inner.sample(population - 1, round, key)
        return found


def in_trust(round: Round, experiment: Experiment, reducer: Reducer[Any], algorithm: Algorithm, clients: int) -> Round:
    """The round with the server's own update, where the reducer asks for one; of so many clients."""
    name, share = experiment.reducer["name"], root_share(experiment)
    if share is not None and round.traits().per_client:
        raise ConfigError(
            "server.root: gives a server data of its own, and in this round there is none. Use round.name = 'central', "
            "or leave it out."
        )
    if not reducer.needs_root():
        if share is not None and not algorithm.traits().public:
            raise ConfigError(
                f"server.root: reducer {name!r} has no use for it, nor has the algorithm. Leave it out, or use "
                "'fltrust' or 'zeno', or algorithm.name = 'feddf' or 'fedmd'."
            )
        return round
    if share is None:
        raise ConfigError(
            f"reducer.name: {name!r} compares updates to one that the server makes on its own data, and it has none. "
            "Say which share of all examples it holds, such as server.root = 0.01; or use 'median'."
        )
    if algorithm.traits().pooled:
        raise ConfigError(f"server.root: {experiment.algorithm['name']} pools all data in one client. Leave it out.")
    return WithRoot.around(round, clients)


def certified(round: Round, experiment: Experiment, algorithm: Algorithm) -> Round:
    """The round with CRFL's clipping and noise on the model, if the file asks for it."""
    table = None if experiment.server is None else experiment.server.crfl
    if table is None:
        return round
    threat = BackdoorThreat(table.attackers, table.rate, table.lipschitz)
    return Certified.around(round, algorithm, table.max_norm, table.std, table.votes, table.alpha, threat=threat)


def check_cohort(reducer: Reducer[Any], clients: int | None) -> None:
    """Refuse a defence that cannot do for so many what it was asked to do; None: their number is not fixed."""
    if clients is not None:
        reducer.check_cohort(clients)
