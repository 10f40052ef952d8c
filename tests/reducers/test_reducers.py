"""Reducers against numpy, and against a wild minority."""

from typing import Any

import numpy as np
import pytest
import torch

import atoll
from atoll import rng, tree
from atoll.core import Info, Reducer, Stack, Total, Update
from atoll.errors import ConfigError, SpecError
from atoll.experiment import Experiment, set_up
from atoll.reducers import Collect, Mean, Median, TrimmedMean, client_weights

KEY = rng.key("reduce")


def updates(n: int, wild: int = 0) -> Update:
    w = rng.normal(rng.key("updates"), (n, 4, 3))
    w[:wild] = 1e6 * (1 + torch.arange(wild).reshape(-1, 1, 1))
    weight = torch.arange(1.0, n + 1)
    return Update({"delta": {"w": w}, "buffers": {}, "loss": w[:, 0, 0]}, weight)


def about(updates: Update) -> Info:
    n = len(updates.weight)
    return Info(torch.arange(n), updates.weight, torch.ones(n), torch.zeros(n))


def lifted(reducer: Reducer[Any], updates: Update) -> Any:
    return reducer.lift(updates, about(updates), KEY)


def finished(reducer: Reducer[Any], partial: Any) -> Total:
    total, state, diagnostics = reducer.finish(partial, {}, KEY)
    assert (state, diagnostics) == ({}, {})
    return total


def reduced(reducer: Reducer[Any], updates: Update) -> Total:
    return finished(reducer, lifted(reducer, updates))


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_the_mean_is_numpys_weighted_average(n: int) -> None:
    u = updates(n)
    found = reduced(Mean(), u)
    want = np.average(u.value["delta"]["w"].numpy(), axis=0, weights=u.weight.numpy())
    assert np.allclose(found.mean()["delta"]["w"], want, atol=1e-6)
    assert (float(found.weight), float(found.count)) == (n * (n + 1) / 2, n)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_the_median_is_numpys_and_ignores_weights(n: int) -> None:
    u = updates(n)
    found = reduced(Median(), u).mean()
    assert np.allclose(found["delta"]["w"], np.median(u.value["delta"]["w"].numpy(), axis=0))
    assert np.allclose(found["loss"], np.median(u.value["loss"].numpy()))


@pytest.mark.parametrize(("n", "share"), [(1, 0.4), (5, 0.0), (5, 0.2), (8, 0.2), (10, 0.49), (10, 0.1)])
def test_the_trimmed_mean_by_hand(n: int, share: float) -> None:
    u = updates(n)
    cut = int(share * n)
    ordered = np.sort(u.value["delta"]["w"].numpy(), axis=0)[cut : n - cut]
    found = reduced(TrimmedMean(share), u).mean()
    assert np.allclose(found["delta"]["w"], ordered.mean(0), atol=1e-6)


def test_trimming_nobody_is_the_plain_mean() -> None:
    u = updates(7)
    found = reduced(TrimmedMean(0.0), u).mean()
    equal = u._replace(weight=torch.ones(7))
    assert np.allclose(found["delta"]["w"], reduced(Mean(), equal).mean()["delta"]["w"], atol=1e-6)


@pytest.mark.parametrize("reducer", [Median(), TrimmedMean(0.3)])
def test_a_wild_minority_cannot_move_it_far(reducer: Reducer[Stack]) -> None:
    honest = updates(10).value["delta"]["w"][3:]
    found = reduced(reducer, updates(10, wild=3)).mean()["delta"]["w"]
    assert bool((found >= honest.amin(0) - 1e-6).all())
    assert bool((found <= honest.amax(0) + 1e-6).all())


def test_a_wild_minority_moves_the_mean_as_far_as_it_likes() -> None:
    assert float(reduced(Mean(), updates(10, wild=3)).mean()["delta"]["w"].abs().max()) > 1e4


@pytest.mark.parametrize("reducer", [Collect(), Median(), TrimmedMean(0.2)])
def test_collecting_keeps_the_order_in_which_updates_came_and_whose_they_are(reducer: Reducer[Stack]) -> None:
    u, info = updates(5), about(updates(5))
    halves = [
        reducer.lift(Update(tree.rows(u.value, s), u.weight[s]), Info(*(x[s] for x in info)), KEY)
        for s in (slice(0, 2), slice(2, 5))
    ]
    stack = reducer.merge(*halves)
    assert torch.equal(stack.updates.value["delta"]["w"], u.value["delta"]["w"])
    assert torch.equal(stack.updates.weight, u.weight)
    assert all(torch.equal(x, y) for x, y in zip(stack.info, info, strict=True))
    assert len(stack) == 5
    assert not reducer.spec().additive


def test_what_was_collected_finishes_as_the_weighted_mean() -> None:
    u = updates(5)
    ours, theirs = reduced(Collect(), u), reduced(Mean(), u)
    assert tree.digest(ours.value) == tree.digest(theirs.value)
    assert (float(ours.weight), float(ours.count)) == (float(theirs.weight), float(theirs.count))


def test_updates_without_content_can_be_reduced() -> None:
    """Local training sends nothing."""
    nothing = Update({}, torch.ones(3))
    for reducer in (Mean(), Median(), TrimmedMean(0.2), Collect()):
        total = finished(reducer, reducer.merge(*(lifted(reducer, nothing) for _ in range(2))))
        assert total.mean() == {}
        assert float(total.count) == 6


@pytest.mark.parametrize("reducer", [Mean(), Median(), TrimmedMean(0.2)])
def test_only_a_sum_is_additive(reducer: Reducer[Any]) -> None:
    assert reducer.spec().additive == isinstance(reducer, Mean)


@pytest.mark.parametrize("reducer", [Mean(), Median(), TrimmedMean(0.2), Collect()])
def test_nobody_merges_with_everybody_and_weighs_nothing(reducer: Reducer[Any]) -> None:
    u = updates(3)
    like = tree.rows(u.value, 0)
    nobody = finished(reducer, reducer.merge_all([], like))
    assert (float(nobody.weight), float(nobody.count)) == (0.0, 0.0)
    assert tree.digest(nobody.value) == tree.digest(tree.zeros_like(like))
    beside = finished(reducer, reducer.merge(reducer.zero(like), lifted(reducer, u)))
    assert tree.digest(beside.value) == tree.digest(reduced(reducer, u).value)


@pytest.mark.parametrize("reducer", [Mean(), Median(), TrimmedMean(0.2), Collect()])
def test_factors_are_multiplied_before_the_sum_and_no_factors_change_nothing(reducer: Reducer[Any]) -> None:
    u, info = updates(6), about(updates(6))
    row = torch.linspace(0.2, 1.0, 6)
    factors = tree.map(lambda _: row, u.value)
    products = reduced(reducer, u.scaled(factors)).value
    torch.testing.assert_close(finished(reducer, reducer.lift_scaled(u, factors, info, KEY)).value, products)
    plain = finished(reducer, reducer.lift_scaled(u, {}, info, KEY))
    assert tree.digest(plain.value) == tree.digest(reduced(reducer, u).value)


# --------------------------------------------------------------------------------------------- weights of one's own


def test_client_weights_of_1_are_the_mean_to_the_last_bit() -> None:
    given = updates(5)
    for weights in ({}, [1.0] * 5, {"2": 1.0}):
        ours, mean = reduced(client_weights(weights, 5), given), reduced(Mean(), given)
        assert tree.digest(ours.value) == tree.digest(mean.value)
        assert ours.weight == mean.weight


def test_a_client_counts_so_many_times_as_much_by_number_or_by_name() -> None:
    given, names = updates(4), ("Bern", "Ulm", "Lyon", "Graz")
    w, factors = given.weight.numpy(), np.array([1.0, 3.0, 1.0, 0.5])
    expected = np.average(given.value["delta"]["w"].numpy(), axis=0, weights=w * factors)
    for weights in ({"Ulm": 3.0, "3": 0.5}, factors.tolist()):
        total = reduced(client_weights(weights, 4, names), given)
        assert total.mean()["delta"]["w"].numpy() == pytest.approx(expected, rel=1e-5)
        assert float(total.weight) == pytest.approx((w * factors).sum())


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, 2.0], r"reducer\.weights: 2 for 3 clients\. Give each one"),
        ({"Berne": 2.0}, r"there is no client 'Berne'\. Use Bern, Ulm, Lyon, or 0 to 2"),
        ({"3": 2.0}, "there is no client '3'"),
    ],
)
def test_weights_of_nobody_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        client_weights(weights, 3, ("Bern", "Ulm", "Lyon"))


@pytest.mark.parametrize("engine", ["loop", "vector", "threads"])
def test_equal_weights_and_client_weights_are_the_weights_of_a_run(engine: str) -> None:
    x, y = np.random.default_rng(0).normal(size=(60, 3)).astype("float32"), np.arange(60) % 2
    rows = {"Bern": np.arange(10), "Ulm": np.arange(10, 30), "Lyon": np.arange(30, 60)}  # 1, 2 and 3 parts of all
    net = torch.nn.Linear(3, 2)
    table: dict[str, Any] = {"clients": rows, "algorithm": {"name": "fedavg", "lr": 0.1}, "rounds": 2, "engine": engine}
    own = {"name": "client_weights", "weights": {"Ulm": 2.0, "Lyon": 3.0}}
    ours = atoll.simulate(net, (x, y), **table, transforms=["equal_weights"], reducer=own)
    usual = atoll.simulate(net, (x, y), **table)
    assert torch.allclose(ours.params["weight"], usual.params["weight"], atol=1e-6)
    other = atoll.simulate(net, (x, y), **table, reducer=own)
    assert not torch.allclose(other.params["weight"], usual.params["weight"], atol=1e-4)


def test_noise_does_not_hold_for_sums_with_weights_of_ones_own() -> None:
    clip, noise = {"name": "clip_l2", "max_norm": 1.0}, {"name": "gaussian_noise", "noise_multiplier": 1.0}
    given = {
        "rounds": 1,
        "data": "digits",
        "partition": {"name": "iid", "clients": 3},
        "algorithm": {"name": "fedavg", "lr": 0.1},
        "transform": ["equal_weights", clip, noise],
        "reducer": {"name": "client_weights", "weights": {"0": 5.0}},
    }
    with pytest.raises(SpecError, match="use reducer = 'mean'"):
        set_up(Experiment.parse(given))
