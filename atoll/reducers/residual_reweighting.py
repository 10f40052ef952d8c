"""Residuals of a robust line through the ordered values of every coordinate say how much a client is believed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Stack
from atoll.reducers.coordinates import median
from atoll.reducers.defence import Above0, AtLeast0, Defence
from atoll.reducers.gram import matrices
from atoll.reducers.rows import Rows
from atoll.tree import Tree

_PIECE = 1 << 22  # slopes that are held at a time
_EPSILON = 1e-7  # of the authors' code, beside the scale of residuals


@dataclass(frozen=True)
class ResidualReweighting(Defence):
    """Ordered values of a coordinate, a repeated-median line, and weights from the residuals (Fu et al., 2019).

    e = residual / (1.4826 (1 + 5 / (n - 1)) median |residual|), w = min(1, K sqrt(1 - h) / |e|), K = confidence
    sqrt(2 / n), h the leverage of the rank. A value of weight below `threshold` is put on the line. A client counts
    (W / max W)^2, W the sum over coordinates of w times the deviation of that coordinate's weights, as in the authors'
    code. Attack-resistant federated learning with residual-based reweighting, arXiv:1912.11464. O(d n^2).
    """

    assumes: ClassVar[str] = "fewer than half of the clients lie in any coordinate, and n > 3; n/2 liars break it"

    confidence: Above0 = 2.0
    threshold: AtLeast0 = 0.1

    def aggregate(self, stack: Stack, state: Tree, key: Tensor) -> tuple[Tree, Tree, Tree]:
        rows, n = Rows.of(stack), len(stack)
        if n < 4:  # no line through so few
            even = torch.full((n,), 1.0 / n, dtype=torch.float64)
            return rows.combined(even), state, {"clients": rows.ids, "weights": even.float()}
        believed = torch.zeros(n, dtype=torch.float64)
        corrected = []
        for x in matrices(rows.value):
            values = torch.empty(x.shape, dtype=torch.float32, device=x.device)
            for part in _pieces(x):
                values[:, part], weights = self._judged(x[:, part][rows.order.to(x.device)].float())
                believed += weights.double().sum(1).cpu()
            corrected.append(values)
        scores = (believed / believed.max()) ** 2 if float(believed.max()) > 0 else torch.ones_like(believed)
        share = scores / scores.sum()
        parts = iter(corrected)
        value = tree.map(lambda x: tree.weighted_sum(next(parts), share.to(x.device)).reshape(x.shape[1:]), rows.value)
        return value, state, {"clients": rows.ids, "weights": share.float(), "scores": scores.float()}

    def _judged(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(C, B) values to those that are used, and their weights."""
        n = len(x)
        ordered, order = x.sort(dim=0, stable=True)
        rank = torch.arange(n, device=x.device, dtype=x.dtype)[:, None]
        slope = repeated_median_slope(ordered)
        line = median(ordered) + slope * (rank - (n - 1) / 2)
        residual = ordered - line
        scale = 1.4826 * (1 + 5 / (n - 1)) * median(residual.abs().sort(0).values[1:]) + _EPSILON
        centred = rank - (n - 1) / 2
        free = (1 - 1 / n - centred**2 / (centred**2).sum()).sqrt()
        bound = self.confidence * (2 / n) ** 0.5
        weights = (bound * free / (residual / scale).abs().clamp(min=1e-30)).clamp(max=1.0)
        used = torch.where(weights >= self.threshold, ordered, line)
        spread = weights * weights.std(0)
        return torch.empty_like(x).scatter_(0, order, used), torch.empty_like(x).scatter_(0, order, spread)

    def tolerates(self, clients: int) -> int:
        return (clients - 2) // 2 if clients > 3 else 0  # the repeated median needs a majority beside each


def repeated_median_slope(ordered: Tensor) -> Tensor:
    """(C, B) in order to (B,): the median over i of the median over j of (y_j - y_i) / (j - i) (Siegel, 1982)."""
    n, width = ordered.shape
    places = torch.arange(n, device=ordered.device)
    others = (places[None, :] + 1 + torch.arange(n - 1, device=ordered.device)[:, None]) % n  # (n - 1, n): all but i
    steps = (others - places[None, :]).to(ordered.dtype)
    slopes = (ordered[others] - ordered[None]) / steps[..., None]
    return median(median(slopes.reshape(n - 1, n * width)).reshape(n, width))


def _pieces(x: Tensor) -> Iterator[slice]:
    width = max(1, _PIECE // len(x) ** 2)
    return (slice(at, at + width) for at in range(0, x.shape[1], width))
