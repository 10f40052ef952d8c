"""Defences beside ByzFL, a second oracle: `pip install --no-deps byzfl==0.0.11`. Skipped where it is not installed."""

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch

from atoll import rng
from atoll.core import Info, Stack, Update
from atoll.reducers import REDUCERS, Mean
from benchmarks.robust import byzfl_modules

pytestmark = pytest.mark.skipif(importlib.util.find_spec("byzfl") is None, reason="ByzFL is not installed")
F, N, D = 3, 11, 40


@pytest.fixture(scope="module")
def byzfl() -> Any:
    return byzfl_modules()


def ours(name: str, x: torch.Tensor, **options: Any) -> np.ndarray:
    n = len(x)
    stack = Stack(Update({"w": x}, torch.ones(n)), Info(torch.arange(n), *[torch.ones(n)] * 3))
    reducer = REDUCERS[name](**options)
    total: np.ndarray = reducer.finish(stack, reducer.init({"w": x[0]}), rng.key(0))[0].mean()["w"].numpy()
    return total


@pytest.mark.parametrize("seed", range(3))
def test_they_agree(byzfl: Any, seed: int) -> None:
    """Its Krum sums n - f - 1 distances, one more than the paper's: ours with f - 1."""
    rules, _ = byzfl
    x = rng.normal(rng.key(seed), (D,)) + rng.normal(rng.key(seed, "own"), (N, D))
    for name, options, theirs in (
        ("median", {}, rules.Median()),
        ("trimmed_mean", {"share": F / N + 1e-6}, rules.TrMean(F)),
        ("meamed", {"byzantine": F}, rules.Meamed(F)),
        ("krum", {"byzantine": F - 1}, rules.Krum(F)),
        ("multi_krum", {"byzantine": F - 1, "keep": N - F}, rules.MultiKrum(F)),
        ("mda", {"byzantine": F}, rules.MDA(F)),
        ("centred_clipping", {"radius": 2.0, "steps": 2}, rules.CenteredClipping(L=2, tau=2.0)),
    ):
        assert ours(name, x, **options) == pytest.approx(np.asarray(theirs(x.numpy().copy())), rel=1e-4, abs=1e-5), name


def test_the_geometric_median_agrees_after_many_steps(byzfl: Any) -> None:
    x = rng.normal(rng.key("geometric"), (N, D))
    theirs = byzfl[0].GeometricMedian(nu=1e-6, T=200)(x.numpy().copy())
    assert ours("geometric_median", x, steps=200) == pytest.approx(theirs, rel=1e-3, abs=1e-4)


def test_wrappers_agree(byzfl: Any) -> None:
    x = rng.normal(rng.key("mixing"), (N, D)) * torch.linspace(0.5, 3.0, N)[:, None]
    for name, theirs in (("nnm", byzfl[1].NNM(F)), ("arc", byzfl[1].ARC(F))):
        handed = np.asarray(theirs(x.numpy().copy()))
        assert ours(name, x, byzantine=F, inner=Mean()) == pytest.approx(handed.mean(0), rel=1e-4, abs=1e-5), name
        middle = ours(name, x, byzantine=F, inner=REDUCERS["median"]())
        assert middle == pytest.approx(np.median(handed, axis=0), rel=1e-4, abs=1e-5), name
