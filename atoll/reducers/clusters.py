"""Two clusters by direction: the larger one is believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from atoll.core import Count, Stack
from atoll.reducers.bounded import shrunk
from atoll.reducers.defence import Defence
from atoll.reducers.rows import Rows
from atoll.tree import Tree


@dataclass(frozen=True)
class ClippedClustering(Defence):
    """The mean of the larger of two clusters by cosine, after clipping to the median of all lengths so far.

    An experimental study of Byzantine-robust aggregation schemes (Li et al., IEEE TBD 2023): average linkage. The last
    `history` lengths are kept.
    """

    assumes: ClassVar[str] = "fewer than half of the clients lie, in every round so far; n/2 that agree break it"

    history: Count = 1000

    def init(self, like: Tree) -> Tree:
        return {"lengths": torch.full((self.history,), torch.nan, dtype=torch.float64)}

    def aggregate(self, stack: Stack, state: Tree, key: Tensor) -> tuple[Tree, Tree, Tree]:
        rows, before = Rows.of(stack), state["lengths"]
        lengths = torch.cat([before, rows.norms.to(before)])[-self.history :]
        bound = lengths[~lengths.isnan()].quantile(0.5).cpu()
        chosen = larger_cluster(rows)
        factors = shrunk(rows.norms, float(bound)) if bool(bound > 0) else torch.ones_like(rows.norms)
        weights = chosen * factors / chosen.sum()
        said = {"clients": rows.ids, "weights": weights.float(), "chosen": rows.ids[chosen], "bound": bound.float()}
        return rows.combined(weights), {"lengths": lengths}, said

    def tolerates(self, clients: int) -> int:
        return (clients - 1) // 2


def larger_cluster(rows: Rows) -> Tensor:
    """(C,) is it in the larger of two clusters? Of two of one size, in that of the lowest id."""
    n, lengths = len(rows), rows.norms.clamp(min=1e-300)
    if n < 3:
        return torch.ones(n, dtype=torch.bool)
    apart = (1 - rows.gram / lengths[:, None] / lengths[None, :]).clamp(min=0).fill_diagonal_(0.0)
    if float(apart.max()) < 1e-9:
        return torch.ones(n, dtype=torch.bool)
    from scipy.cluster.hierarchy import fcluster, linkage  # slow to import
    from scipy.spatial.distance import squareform

    labels = fcluster(linkage(squareform(apart.numpy(), checks=False), "average"), 2, "maxclust")
    first = torch.from_numpy(labels == labels[0])
    return first if 2 * int(first.sum()) >= n else ~first
