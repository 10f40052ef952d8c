"""How unlike the clients are, in a few numbers."""

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll.data.partition.partition import Partition


@dataclass(frozen=True)
class Skew:
    """How far a partition is from alike clients; all are 0 for clients of one size and one label distribution."""

    total_variation: float
    emd: float
    gini: float


def label_skew(partition: Partition, labels: Tensor) -> Skew:
    """Label skew and size skew of a partition.

    With p_c the label distribution of client c, n_c its size and q the one of all clients together:
    total_variation = mean over c of |p_c - q|_1 / 2, every client alike, in 0..1;
    emd = sum over c of (n_c / n) |p_c - q|_1, every example alike, in 0..2: the "earth mover's distance" of
    Zhao et al. (2018), https://arxiv.org/abs/1806.00582; gini: of the sizes (`size_gini`).

    >>> label_skew(Partition.from_lists([[0, 1], [2, 3]]), torch.tensor([0, 0, 1, 1]))
    Skew(total_variation=0.5, emd=1.0, gini=0.0)
    """
    held, sizes = label_counts(partition, labels).double(), partition.sizes.double()
    apart = (held / sizes[:, None].clamp(min=1) - held.sum(0) / sizes.sum()).abs().sum(1)[sizes > 0]
    weights = sizes[sizes > 0] / sizes.sum()
    return Skew(float(apart.mean() / 2), float((weights * apart).sum()), size_gini(partition.sizes))


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
