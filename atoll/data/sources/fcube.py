"""FCUBE."""

from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from atoll import rng
from atoll.data.dataset import Dataset
from atoll.data.memory import check_share
from atoll.rng import host

_BYTES = 250  # of a point at the peak: coordinates in float64 and float32, random words, keys


def fcube(points: Annotated[int, Field(ge=2)] = 1000, seed: int = 0) -> Dataset:
    """FCUBE: points of a cube, two classes by the sign of x1; four parties with two opposite octants each.

    Party l draws `points` points of (0, 1)^3, turns the sign of x2 if l > 1 and of x3 if l is odd; every second point
    is mirrored at the origin and is class 1. Natural clients: "party" (4), "octant" (8, by the signs of the
    coordinates). The test set is as many points, uniform in [-1, 1]^3, class 0 where x1 > 0.
    Li et al. (NIID-Bench, 2022), https://arxiv.org/abs/2102.02079.
    """
    n = 4 * points
    check_share(n * _BYTES, f"data.points: {n:,} points and as many more", "Set fewer points")
    party, second = np.arange(n) // points, np.arange(n) % points % 2
    x = host.uniform(rng.key("fcube", seed, "train"), np.arange(3 * n)).reshape(n, 3)
    x[party > 1, 1] *= -1
    x[party % 2 == 1, 2] *= -1
    x[second == 1] *= -1
    far = 2 * host.uniform(rng.key("fcube", seed, "test"), np.arange(3 * points)).reshape(points, 3) - 1
    keys = {"party": party, "octant": (x < 0) @ np.array([4, 2, 1])}
    return Dataset(
        "fcube",
        "classification",
        {"x": torch.from_numpy(x.astype(np.float32)), "y": torch.from_numpy(second.astype(np.int64))},
        {"x": torch.from_numpy(far.astype(np.float32)), "y": torch.from_numpy((far[:, 0] <= 0).astype(np.int64))},
        (3,),
        2,
        keys={k: torch.from_numpy(v.astype(np.int64)) for k, v in keys.items()},
    ).check()
