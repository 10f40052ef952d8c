"""Synthetic(alpha, beta)."""

from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from atoll import rng, tree
from atoll.data.dataset import Dataset
from atoll.rng import host

Floats = NDArray[np.float64]
_NUMBERS = 1 << 21  # drawn at a time


def synthetic(
    alpha: Annotated[float, Field(ge=0)] = 1.0,
    beta: Annotated[float, Field(ge=0)] = 1.0,
    users: Annotated[int, Field(ge=1)] = 30,
    dimensions: Annotated[int, Field(ge=1)] = 60,
    classes: Annotated[int, Field(ge=2)] = 10,
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

    sizes = np.floor(np.exp(4 + 2 * gauss("sizes", users))).astype(np.int64) + 50
    sizes = sizes if largest is None else np.minimum(sizes, largest)
    user, place = host.group_positions(sizes)
    test = place >= (sizes - np.rint(0.2 * sizes).astype(np.int64))[user]
    shift, centre = alpha * gauss("u", users), beta * gauss("B", users)
    scale, ends = np.arange(1, dimensions + 1) ** -0.6, np.cumsum(sizes)
    x, y = np.empty((len(user), dimensions), np.float32), np.empty(len(user), np.int64)
    step = max(1, _NUMBERS // (dimensions * (classes + len(user) // users)))
    for some in (slice(i, min(i + step, users)) for i in range(0, users, step)):  # all models at once may not fit
        W = gauss("W", users, dimensions, classes, part=some) + shift[some, None, None]
        b = gauss("b", users, classes, part=some) + shift[some, None]
        v = gauss("v", users, dimensions, part=some) + centre[some, None]
        last, many = ends[some], sizes[some]
        rows = slice(int(last[0] - many[0]), int(last[-1]))
        own = v[user[rows] - some.start] + gauss("x", len(user), dimensions, part=rows) * scale
        cuts = zip((last - many - rows.start).tolist(), (last - rows.start).tolist(), strict=True)
        x[rows], y[rows] = own, np.concatenate([(own[a:z] @ W[k] + b[k]).argmax(1) for k, (a, z) in enumerate(cuts)])
    columns = {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}
    train, held = (tree.rows(columns, torch.from_numpy(rows)) for rows in (~test, test))
    keys = {"user": torch.from_numpy(user[~test])}
    name = f"synthetic({alpha:g},{beta:g})"
    return Dataset(name, "classification", train, held, (dimensions,), classes, keys=keys).check()
