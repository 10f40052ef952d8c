"""Numbers that differ between clients: drawn as their distribution says, and the same whoever asks."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.clock import Devices
from atoll.clock.clock_table import ClockTable
from atoll.clock.quantities import Quantity, read_quantity
from atoll.errors import ConfigError

N = 20_000
LOGNORMAL = {"median": 5.0, "sigma": 0.5}
UNIFORM = {"low": 1.0, "high": 9.0}
TABLE = {"percentiles": [[10, 1.0], [50, 4.0], [90, 9.0]]}


def read(written: Any, least: float = 0.0, above: bool = False) -> Quantity:
    return read_quantity(written, "clock.slowness", least, above)


@pytest.mark.parametrize(
    ("written", "share", "value"),
    [
        (3.0, 0.2, 3.0),
        (LOGNORMAL, 0.5, 5.0),
        (LOGNORMAL, 0.8413447, 5.0 * np.exp(0.5)),
        (UNIFORM, 0.0, 1.0),
        (UNIFORM, 0.25, 3.0),
        (UNIFORM, 1.0, 9.0),
        (TABLE, 0.1, 1.0),
        (TABLE, 0.5, 4.0),
        (TABLE, 0.3, 2.0),  # halfway between 1 and 4 in the logarithm
        (TABLE, 0.01, 1.0),
        (TABLE, 0.99, 9.0),
        ({"percentiles": [[10, 0.0], [50, 4.0]]}, 0.3, 2.0),  # there is no logarithm of 0
    ],
)
def test_a_share_of_all_clients_is_below_a_quantile(written: Any, share: float, value: float) -> None:
    assert read(written).quantile(np.array([share])) == pytest.approx([value], rel=1e-6)


@given(share=st.floats(1e-9, 1 - 1e-9), more=st.floats(1e-9, 1 - 1e-9))
def test_quantiles_rise_and_nobody_is_below_the_lowest(share: float, more: float) -> None:
    for written in (LOGNORMAL, UNIFORM, TABLE, 2.0):
        quantity = read(written)
        low, high = quantity.quantile(np.array([min(share, more), max(share, more)]))
        assert quantity.lowest <= low <= high


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"low": 9.0, "high": 1.0}, "low is above high .* Turn them round"),
        ({"median": 5.0, "sigma": -0.1}, r"sigma: must be at least 0 \(got -0.1\)"),
        ({"low": 1.0}, "is no distribution"),
        ({"low": 1.0, "high": True}, "is no distribution"),
        ({"percentiles": [[0, 1.0]]}, "percents between 0 and 100"),
        ({"percentiles": [[10, 5.0], [20, 4.0]]}, "both must rise"),
        ({"percentiles": [10, 1.0]}, "a list of pairs"),
        (UNIFORM, r"must be at least 2 for every client \(got 1\)"),
    ],
)
def test_what_is_no_distribution_is_refused(written: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"clock.slowness.*{words}"):
        read(written, least=2.0)


def test_a_bound_that_must_be_exceeded_is_not_reached() -> None:
    assert read(1.0, least=1.0).lowest == 1.0
    with pytest.raises(ConfigError, match="must be above 1 for every client"):
        read(1.0, least=1.0, above=True)


def devices(seed: int = 0, **table: Any) -> Any:
    return Devices.of(ClockTable(seconds_per_step=0.0, **table), seed, N).profile(np.arange(N))


def test_clients_are_spread_as_their_distribution_says() -> None:
    found = devices(slowness=UNIFORM, up_mbps=LOGNORMAL, down_mbps=TABLE, latency_ms={"low": 10, "high": 30})
    for share in (0.1, 0.3, 0.5, 0.9):
        within = pytest.approx(share, abs=0.015)
        assert (found.slowness < read(UNIFORM).quantile(np.array([share]))).mean() == within
        assert (found.up * 8 / 1e6 < read(LOGNORMAL).quantile(np.array([share]))).mean() == within
        assert (found.latency * 1e3 < 10 + 20 * share).mean() == within
    assert (found.down * 8 / 1e6 <= 4.0).mean() == pytest.approx(0.5, abs=0.015)


def test_a_good_downlink_comes_with_a_good_uplink_and_says_nothing_of_the_processor() -> None:
    found = devices(slowness=UNIFORM, up_mbps=UNIFORM, down_mbps=UNIFORM)
    assert np.array_equal(found.up, found.down)
    assert abs(np.corrcoef(found.up, found.slowness)[0, 1]) < 0.03


def test_classes_have_their_shares_and_a_seed_draws_others() -> None:
    table = {"devices": {"silo": 0.25, "fedeval": 0.75}}
    one, again, other = devices(**table), devices(**table), devices(seed=1, **table)
    assert np.array_equal(one.up, again.up)
    assert not np.array_equal(one.up, other.up)
    assert (one.up == 10e6 / 8).mean() == pytest.approx(0.75, abs=0.015)


def test_some_clients_alone_are_what_they_are_among_all() -> None:
    table = ClockTable(seconds_per_step=0.0, slowness=LOGNORMAL, devices={"silo": 0.5, "fedeval": 0.5})
    few = np.array([17, 3, 999])
    alone, among = Devices.of(table, 0, N).profile(few), Devices.of(table, 0, N).profile(np.arange(N))
    for one, every in zip(alone, among, strict=True):
        assert np.array_equal(one, every[few])
