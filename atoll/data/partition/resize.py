"""Other sizes for the same label skew."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from atoll.data.partition import assign
from atoll.data.partition.partition import Partition
from atoll.errors import PartitionError
from atoll.rng import host

Ints = NDArray[np.int64]

_ROUNDS = 1000
_CLOSE = 0.02  # of a size; or half a row


def resize(partition: Partition, labels: Tensor | None, sizes: Tensor, key: Tensor, where: str) -> Partition:
    """The same clients with these sizes, and every class shared out as before as far as that can be.

    Of all tables (classes by clients) with the wanted sums the one nearest to the old one in relative entropy: rows
    and columns are scaled in turn (Deming and Stephan, 1940). A client gets no class that it did not have. Sizes
    are met to within a row for each of its classes.
    """
    classes = assign.classes_of(labels, "compose")
    K, N = int(classes.max()) + 1, partition.size
    cells = classes[partition.indices.numpy()] * N + partition.owners().numpy()
    old = np.bincount(cells, minlength=K * N).reshape(K, N)
    counts = np.zeros_like(old)
    counts[old.any(1)] = _scaled(old[old.any(1)], sizes.numpy(), where)
    owner = assign.owners_by_counts(counts, classes, host.fold(key, 0))
    resized = assign.partition_by_owner(owner, N, host.fold(key, 1), partition.provenance)
    return replace(resized, noise=partition.noise, fresh=partition.fresh, groups=partition.groups)


def _scaled(old: Ints, sizes: Ints, where: str) -> Ints:
    """Rows and columns scaled in turn until the columns add up to the sizes, in whole numbers."""
    rows, columns = old.sum(1) * (sizes.sum() / old.sum()), sizes.astype(np.float64)
    table = old.astype(np.float64)
    for _ in range(_ROUNDS):
        table *= (columns / table.sum(0))[None]
        table *= (rows / table.sum(1))[:, None]
        gap = np.abs(table.sum(0) - columns)
        if (gap <= np.maximum(0.5, _CLOSE * columns)).all():
            totals = np.minimum(np.rint(rows).astype(np.int64), old.sum(1))
            return assign.counts_by_largest_remainder(table / table.sum(1, keepdims=True), totals)
    worst = int(np.argmax(gap))
    kinds = "class" if (n := int((old[:, worst] > 0).sum())) == 1 else "classes"
    raise PartitionError(
        f"{where}: the sizes do not fit the classes: client {worst} should have {sizes[worst]} examples, and its "
        f"{n} {kinds} can give it {round(float(table[:, worst].sum()))}. "
        "Use sizes that differ less, or more classes for each client."
    )
