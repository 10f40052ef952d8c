"""Synthetic(alpha, beta)."""

import itertools
from collections.abc import Iterator
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from atoll import rng
from atoll.data.dataset import Dataset
from atoll.data.memory import SHARE, check_share, machine_memory
from atoll.rng import host
from atoll.tree import Tree

Floats = NDArray[np.float64]
_NUMBERS = 1 << 21  # drawn at a time
_LOGITS = 1 << 25  # at a time


def synthetic(
    alpha: Annotated[float, Field(ge=0)] = 1.0,
    beta: Annotated[float, Field(ge=0)] = 1.0,
    users: Annotated[int, Field(ge=1)] = 30,
    dimensions: Annotated[int, Field(ge=1)] = 60,
    classes: Annotated[int, Field(ge=2, le=10_000)] = 10,
    largest: Annotated[int, Field(ge=5)] | None = None,
    seed: int = 0,
) -> Dataset:
    """Synthetic(alpha, beta): users whose models (alpha) and inputs (beta) differ; natural clients by "user".

    User k: n_k = floor(LogNormal(4, 2)) + 50 examples (at most `largest`); u_k ~ N(0, alpha), W_k and b_k ~ N(u_k, 1);
    B_k ~ N(0, beta), v_k ~ N(B_k, 1), x ~ N(v_k, Sigma) with Sigma_jj = j^-1.2; y = argmax softmax(W_k x + b_k).
    As in the authors' generator alpha and beta are standard deviations. The last 20 % of every user are the test set.
    Li et al. (FedProx, 2020), https://arxiv.org/abs/1812.06127, after Shamir et al. (2014).
    """

    def gauss(name: str, count: int, *shape: int, part: slice = slice(None)) -> Floats:
        """The rows `part` of `count` rows of draws; the others are not made."""
        each = int(np.prod(shape))
        first, end, _ = part.indices(count)
        at = np.arange(first * each, end * each)
        return host.normal(rng.key("synthetic", seed, name), count * each, at).reshape(end - first, *shape)

    _check_size(np.array([min(50, largest or 50)]), users, dimensions, classes)  # at least: also sizes must fit
    sizes = np.floor(np.exp(4 + 2 * gauss("sizes", users))).astype(np.int64) + 50
    sizes = sizes if largest is None else np.minimum(sizes, largest)
    _check_size(sizes, users, dimensions, classes)
    user, place = host.group_positions(sizes)
    test = place >= (sizes - np.rint(0.2 * sizes).astype(np.int64))[user]
    shift, centre = alpha * gauss("u", users), beta * gauss("B", users)
    scale, ends = np.arange(1, dimensions + 1) ** -0.6, np.cumsum(sizes)
    parts = [_Part(int(rows.sum()), dimensions) for rows in (~test, test)]
    for some in _chunks((sizes + classes) * dimensions):  # all models at once may not fit
        W = gauss("W", users, dimensions, classes, part=some) + shift[some, None, None]
        b = gauss("b", users, classes, part=some) + shift[some, None]
        v = gauss("v", users, dimensions, part=some) + centre[some, None]
        last, many = ends[some], sizes[some]
        rows = slice(int(last[0] - many[0]), int(last[-1]))
        own = v[user[rows] - some.start] + gauss("x", len(user), dimensions, part=rows) * scale
        cuts = zip((last - many - rows.start).tolist(), (last - rows.start).tolist(), strict=True)
        y = np.concatenate([_labels(own[a:z], W[k], b[k]) for k, (a, z) in enumerate(cuts)])
        for part, mine in zip(parts, (~test[rows], test[rows]), strict=True):
            part.add(own[mine], y[mine])
    train, held = (part.columns() for part in parts)
    keys = {"user": torch.from_numpy(user[~test])}
    name = f"synthetic({alpha:g},{beta:g})"
    return Dataset(name, "classification", train, held, (dimensions,), classes, keys=keys).check()


def _labels(x: Floats, W: Floats, b: Floats) -> NDArray[np.int64]:
    """argmax of x W + b; the logits of one user may be a thousand times its numbers, so not all at once."""
    step = max(1, _LOGITS // len(b))
    return np.concatenate([(x[i : i + step] @ W + b).argmax(1) for i in range(0, len(x), step)])


class _Part:
    """Rows in float32, filled from the first on: never held twice."""

    def __init__(self, rows: int, dimensions: int) -> None:
        self.x, self.y = np.empty((rows, dimensions), np.float32), np.empty(rows, np.int64)
        self.filled = 0

    def add(self, x: Floats, y: NDArray[np.int64]) -> None:
        here = slice(self.filled, self.filled + len(x))
        self.x[here], self.y[here], self.filled = x, y, here.stop

    def columns(self) -> Tree:
        return {"x": torch.from_numpy(self.x), "y": torch.from_numpy(self.y)}


def _chunks(numbers: NDArray[np.int64]) -> Iterator[slice]:
    """Users whose numbers fit together, or one that has more."""
    chunk = np.cumsum(numbers) // _NUMBERS
    ends = [*(np.flatnonzero(np.diff(chunk)) + 1).tolist(), len(numbers)]
    yield from (slice(a, z) for a, z in itertools.pairwise([0, *ends]))


def estimated_bytes(sizes: NDArray[np.int64], users: int, dimensions: int, classes: int) -> int:
    """At the peak: numbers in float32, labels, users and places; and what is drawn at a time, some times over.

    `sizes` of the users, or one that all have at least.
    """
    rows = int(sizes.sum()) * users // len(sizes)
    drawn = max(2 * _NUMBERS, (int(sizes.max()) + classes) * dimensions)
    return rows * (4 * dimensions + 42) + 64 * drawn + 16 * min(int(sizes.max()) * classes, _LOGITS)


def _check_size(sizes: NDArray[np.int64], users: int, dimensions: int, classes: int) -> None:
    """Refuse what would not fit, with what would."""
    limit = machine_memory() // SHARE
    needed = estimated_bytes(sizes, users, dimensions, classes)
    fewer = max(1, users * limit // needed)
    caps = (1000, 500, 200, 100, 50)
    cap = next((c for c in caps if estimated_bytes(np.minimum(sizes, c), users, dimensions, classes) <= limit), None)
    instead = f"Set data.users = {fewer}" + (f", or data.largest = {cap} to cap the examples of each" if cap else "")
    if estimated_bytes(sizes[:1], 1, dimensions, classes) > limit:
        instead = "Set fewer data.dimensions or data.classes"
    rows = int(sizes.sum()) * users // len(sizes)
    check_share(needed, f"data.users: {users:,} users hold {rows:,} examples of {dimensions:,} numbers", instead)
