"""What clients are called, where the data knows it."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
from torch import Tensor

from atoll.data.dataset import Dataset
from atoll.data.partition.assign import Partitioner
from atoll.data.partition.partition import Partition


def make_clients(dataset: Dataset, partitioner: Partitioner, key: Tensor) -> Partition:
    """The clients that the partitioner makes of the data, with the names of the natural ones where it kept these."""
    partition = partitioner(dataset.labels, dataset.keys, dataset.examples, key)
    return partition if partition.client_names else _named(partition, dataset.keys, dataset.client_names)


def _named(partition: Partition, keys: Mapping[str, Tensor], names: Mapping[str, tuple[str, ...]]) -> Partition:
    for key, known in names.items():
        members = _members(partition, keys[key])
        if members is not None:
            return replace(partition, client_names=tuple(_joined([known[i] for i in one]) for one in members))
    return partition


def _members(partition: Partition, natural: Tensor) -> list[list[int]] | None:
    """The natural clients that each client is made of; None if one of them was split between clients."""
    owners, numbers = partition.owners().numpy(), natural[partition.indices].numpy()
    count = int(numbers.max(initial=0)) + 1
    owner, member = np.divmod(np.unique(owners * count + numbers), count)  # one number a pair sorts ten times as fast
    if len(np.unique(member)) < len(member):
        return None
    starts = np.searchsorted(owner, np.arange(partition.size + 1))
    return [member[a:b].tolist() for a, b in pairwise(starts.tolist())]


def _joined(names: list[str]) -> str:
    """Of a client that is several natural ones.

    >>> _joined(["Bern"]), _joined(["Bern", "Ulm"]), _joined(["Bern", "Ulm", "Zug", "Genf"])
    ('Bern', 'Bern + Ulm', 'Bern + 3 more')
    """
    return " + ".join(names) if len(names) < 4 else f"{names[0]} + {len(names) - 1} more"
