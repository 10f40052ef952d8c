"""Synthetic(alpha, beta)."""

from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from atoll import rng, tree
from atoll.data import draws
from atoll.data.dataset import Dataset


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

    def gauss(name: str, *shape: int) -> NDArray[np.float64]:
        return draws.normal(rng.key("synthetic", seed, name), int(np.prod(shape))).reshape(shape)

    sizes = np.floor(np.exp(4 + 2 * gauss("sizes", users))).astype(np.int64) + 50
    sizes = sizes if largest is None else np.minimum(sizes, largest)
    user = np.repeat(np.arange(users), sizes)
    shift = alpha * gauss("u", users)
    W = gauss("W", users, dimensions, classes) + shift[:, None, None]
    b = gauss("b", users, classes) + shift[:, None]
    v = gauss("v", users, dimensions) + beta * gauss("B", users)[:, None]
    x = v[user] + gauss("x", len(user), dimensions) * np.arange(1, dimensions + 1) ** -0.6
    ends = np.cumsum(sizes)
    y = np.concatenate(
        [(x[e - n : e] @ W[k] + b[k]).argmax(1) for k, (e, n) in enumerate(zip(ends, sizes, strict=True))]
    )
    test = np.arange(len(user)) >= (ends - np.rint(0.2 * sizes).astype(np.int64))[user]
    columns = {"x": torch.from_numpy(x.astype(np.float32)), "y": torch.from_numpy(y.astype(np.int64))}
    train, held = (tree.rows(columns, torch.from_numpy(rows)) for rows in (~test, test))
    keys = {"user": torch.from_numpy(user[~test])}
    name = f"synthetic({alpha:g},{beta:g})"
    return Dataset(name, "classification", train, held, (dimensions,), classes, keys=keys).check()
