"""Dropouts that come together, or by what clients hold: the probability stays what the file says."""

import numpy as np
import pytest
from scipy import stats

from atoll.clock import Clock, ClockTable, by_labels, by_size, lost_clients

IDS = np.arange(200)


def drops(rounds: int, seed: int = 0, propensity: np.ndarray | None = None, **options: object) -> np.ndarray:
    """Who was lost, (rounds, clients)."""
    table = ClockTable.model_validate({"seconds_per_step": 0.0, "dropout": 0.3, **options})
    clock = Clock.of(table, seed, len(IDS), propensity=propensity)
    lines = (clock.timeline(number, IDS, np.ones_like(IDS), 0.0, 0.0, 0.0) for number in range(rounds))
    return np.stack([~line.counted for line in lines])


def test_without_correlation_nothing_is_another_draw() -> None:
    plain = drops(20)
    assert (plain == drops(20, dropout_correlation=0.0)).all()
    assert (plain == drops(20, propensity=np.ones(len(IDS)))).all()


def test_a_correlation_of_one_loses_all_or_nobody() -> None:
    shares = drops(400, dropout_correlation=1.0).mean(1)
    assert set(shares) == {0.0, 1.0}
    assert shares.mean() == pytest.approx(0.3, abs=0.07)


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.2, 0.6])
def test_the_probability_stays_and_pairs_are_lost_as_two_correlated_normals_say(rho: float) -> None:
    lost = drops(3000, dropout_correlation=rho)
    assert lost.mean() == pytest.approx(0.3, abs=0.02)
    both = np.mean((lost.sum(1) * (lost.sum(1) - 1)) / (len(IDS) * (len(IDS) - 1)))  # over all pairs
    edge = stats.norm.ppf(0.3)
    exact = stats.multivariate_normal.cdf([edge, edge], cov=[[1, rho], [rho, 1]])
    assert both == pytest.approx(exact, abs=0.02)
    assert both > 0.3**2 + 0.02


@pytest.mark.slow
def test_large_clients_are_lost_more_and_the_mean_stays() -> None:
    sizes = np.where(IDS < 100, 10, 30)
    lost = drops(1500, propensity=by_size(sizes, 1.0)).mean(0)
    assert lost[:100].mean() == pytest.approx(0.15, abs=0.01)
    assert lost[100:].mean() == pytest.approx(0.45, abs=0.01)


def test_clients_without_the_labels_are_never_lost() -> None:
    counts = np.stack([np.where(IDS % 2, 5, 0), np.full(len(IDS), 5)], axis=1)
    lost = drops(200, propensity=by_labels(counts, [0])).mean(0)
    assert (lost[IDS % 2 == 0] == 0).all()
    assert lost[IDS % 2 == 1].mean() == pytest.approx(0.6, abs=0.02)


def test_a_probability_above_one_is_certain() -> None:
    p = np.minimum(1.0, np.array([1.7, 0.2]))
    assert lost_clients(p, np.array([0.999, 0.5]), 0.5, 0.0).tolist() == [True, False]
    assert lost_clients(p, np.array([0.999, 0.5]), 0.5, 0.5)[0]


def test_nobody_who_holds_the_label_means_all_alike() -> None:
    assert by_labels(np.array([[0, 4], [0, 2]]), [0]).tolist() == [1.0, 1.0]
