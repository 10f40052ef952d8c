"""Label skew and size skew of a partition."""

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll.data.measures import count_table
from atoll.data.partition.partition import Partition


@dataclass(frozen=True)
class Skew:
    """How far a partition is from alike clients: 0 0 0 0 for clients of one size and one label distribution.

    Definitions in `measures.table` and `size_gini`.
    """

    total_variation: float
    emd: float
    gini: float
    jensen_shannon: float
    label_entropy: float  # bits in the mean
    effective_classes: float


def label_skew(partition: Partition, labels: Tensor) -> Skew:
    """Label skew and size skew of a partition, in six numbers.

    >>> skew = label_skew(Partition.from_lists([[0, 1], [2, 3]]), torch.tensor([0, 0, 1, 1]))
    >>> skew.total_variation, skew.emd, skew.gini, skew.effective_classes
    (0.5, 1.0, 0.0, 1.0)
    """
    counts = label_counts(partition, labels).numpy()
    return Skew(
        count_table.total_variation(counts),
        count_table.emd(counts),
        size_gini(partition.sizes),
        count_table.jensen_shannon(counts),
        count_table.label_entropy(counts),
        count_table.effective_classes(counts),
    )


def label_counts(partition: Partition, labels: Tensor) -> Tensor:
    """How many rows of each class each client holds, (N, K)."""
    K = int(labels.max()) + 1
    cells = partition.owners() * K + labels[partition.indices]
    return torch.bincount(cells, minlength=partition.size * K).reshape(partition.size, K)


def size_gini(sizes: Tensor) -> float:
    """The Gini coefficient of the sizes: 0 when all are alike, near 1 when one client has nearly everything.

    G = sum_i (2i - N - 1) n_(i) / (N sum n), with the sizes in rising order.
    """
    n = sizes.double().sort().values
    N = len(n)
    rank = torch.arange(1, N + 1, dtype=torch.float64)
    return float(((2 * rank - N - 1) * n).sum() / (N * n.sum()))
