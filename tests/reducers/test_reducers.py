"""Reducers against numpy, and against a wild minority."""

import numpy as np
import pytest
import torch

from atoll import rng, tree
from atoll.core import Update
from atoll.reducers import Keep, Mean, Median, Stack, TrimmedMean


def updates(n: int, wild: int = 0) -> Update:
    w = rng.normal(rng.key("updates"), (n, 4, 3))
    w[:wild] = 1e6 * (1 + torch.arange(wild).reshape(-1, 1, 1))
    weight = torch.arange(1.0, n + 1)
    return Update({"delta": {"w": w}, "buffers": {}, "loss": w[:, 0, 0]}, weight)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_the_mean_is_numpys_weighted_average(n: int) -> None:
    u = updates(n)
    found = Mean().finish(Mean().lift(u))
    want = np.average(u.value["delta"]["w"].numpy(), axis=0, weights=u.weight.numpy())
    assert np.allclose(found.mean()["delta"]["w"], want, atol=1e-6)
    assert (float(found.weight), float(found.count)) == (n * (n + 1) / 2, n)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_the_median_is_numpys_and_ignores_weights(n: int) -> None:
    u = updates(n)
    found = Median().finish(Median().lift(u)).mean()
    assert np.allclose(found["delta"]["w"], np.median(u.value["delta"]["w"].numpy(), axis=0))
    assert np.allclose(found["loss"], np.median(u.value["loss"].numpy()))


@pytest.mark.parametrize(("n", "share"), [(1, 0.4), (5, 0.0), (5, 0.2), (8, 0.2), (10, 0.49), (10, 0.1)])
def test_the_trimmed_mean_by_hand(n: int, share: float) -> None:
    u = updates(n)
    cut = int(share * n)
    ordered = np.sort(u.value["delta"]["w"].numpy(), axis=0)[cut : n - cut]
    found = TrimmedMean(share).finish(TrimmedMean(share).lift(u)).mean()
    assert np.allclose(found["delta"]["w"], ordered.mean(0), atol=1e-6)


def test_trimming_nobody_is_the_plain_mean() -> None:
    u = updates(7)
    found = TrimmedMean(0.0).finish(TrimmedMean(0.0).lift(u)).mean()
    equal = u._replace(weight=torch.ones(7))
    assert np.allclose(found["delta"]["w"], Mean().finish(Mean().lift(equal)).mean()["delta"]["w"], atol=1e-6)


@pytest.mark.parametrize("reducer", [Median(), TrimmedMean(0.3)])
def test_a_wild_minority_cannot_move_it_far(reducer: Median) -> None:
    honest = updates(10).value["delta"]["w"][3:]
    found = reducer.finish(reducer.lift(updates(10, wild=3))).mean()["delta"]["w"]
    assert bool((found >= honest.amin(0) - 1e-6).all())
    assert bool((found <= honest.amax(0) + 1e-6).all())


def test_a_wild_minority_moves_the_mean_as_far_as_it_likes() -> None:
    assert float(Mean().finish(Mean().lift(updates(10, wild=3))).mean()["delta"]["w"].abs().max()) > 1e4


def test_keeping_keeps_the_order_in_which_updates_came() -> None:
    u = updates(5)
    halves = [Update(tree.rows(u.value, s), u.weight[s]) for s in (slice(0, 2), slice(2, 5))]
    a, b = (Keep().lift(h) for h in halves)
    kept = Keep().finish(a.merge(b))
    assert isinstance(kept, Stack)
    assert torch.equal(kept.updates.value["delta"]["w"], u.value["delta"]["w"])
    assert torch.equal(kept.updates.weight, u.weight)
    assert not Keep().spec().additive


def test_updates_without_content_can_be_reduced() -> None:
    """Local training sends nothing."""
    nothing = Update({}, torch.ones(3))
    for reducer in (Mean(), Median(), TrimmedMean(0.2)):
        total = reducer.finish(reducer.lift(nothing).merge(reducer.lift(nothing)))
        assert total.mean() == {}
        assert float(total.count) == 6


@pytest.mark.parametrize("reducer", [Mean(), Median(), TrimmedMean(0.2)])
def test_only_a_sum_is_additive(reducer: Mean) -> None:
    assert reducer.spec().additive == isinstance(reducer, Mean)
