"""Batches drawn anew in every step: who is in them, how often, and that nothing else changes that."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll import rng
from atoll.core import Cohort
from atoll.data import Partition, Population
from atoll.data.batch_sampling import Sampling

KEY = rng.key(0, "round", 3)


def population(
    sizes: list[int], sampling: Sampling, batch: int, epochs: int = 1, steps: int | None = None
) -> Population:
    offsets = torch.tensor([0, *np.cumsum(sizes).tolist()])
    return Population(Partition(offsets, torch.arange(int(offsets[-1]))), batch, epochs, True, steps, sampling)


def real(cohort: Cohort, c: int) -> list[list[int]]:
    counts = cohort.count[c, : int(cohort.steps[c])].tolist()
    return [cohort.plan[c, s, :n].tolist() for s, n in enumerate(counts)]


@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    batch=st.integers(0, 6),
    epochs=st.integers(1, 3),
    steps=st.none() | st.integers(1, 5),
    sampling=st.sampled_from(["poisson", "fixed"]),
    data=st.data(),
)
def test_a_batch_holds_different_examples_of_its_client_and_nothing_beside_it_matters(
    sizes: list[int], batch: int, epochs: int, steps: int | None, sampling: Sampling, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=6))
    drawn, first = population(sizes, sampling, batch, epochs, steps), np.cumsum([0, *sizes])
    cohort = drawn.cohort(torch.tensor(ids, dtype=torch.int64), KEY)
    shuffled = population(sizes, "shuffled", batch, epochs, steps).cohort(cohort.id, KEY)
    assert cohort.steps.tolist() == shuffled.steps.tolist()
    assert cohort.plan.shape[:2] == tuple(cohort.count.shape)
    for c, i in enumerate(ids):
        own = range(first[i], first[i + 1])
        for rows in real(cohort, c):
            assert len(set(rows)) == len(rows)
            assert set(rows) <= set(own)
            if sampling == "fixed" or not 0 < batch < sizes[i]:
                assert len(rows) == min(batch or sizes[i], sizes[i])
        assert cohort.count[c, int(cohort.steps[c]) :].sum() == 0
        assert not sizes[i] or set(cohort.plan[c].flatten().tolist()) <= set(own)  # padding is the client's, too
        assert real(drawn.cohort(torch.tensor([i]), KEY), 0) == real(cohort, c)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_every_example_is_drawn_at_the_rate_of_batch_over_n(sampling: Sampling) -> None:
    # 40 examples, 4,000 batches of 8: rates of deviation 0.0063; within five of them, a false alarm in 1 of 40,000
    cohort = population([40], sampling, 8, steps=4_000, epochs=800).cohort(torch.arange(1), KEY)
    seen = np.array([np.isin(np.arange(40), rows) for rows in real(cohort, 0)])
    assert seen.shape == (4_000, 40)
    assert np.abs(seen.mean(0) - 0.2).max() < 5 * math.sqrt(0.2 * 0.8 / 4_000)
    # Alone, two examples come together in 0.04 of the batches; of a fixed number, in 8 x 7 of 40 x 39.
    together = 0.04 if sampling == "poisson" else 56 / 1560
    pairs = (seen[:, :20] & seen[:, 20:]).mean()
    assert abs(pairs - together) < 5 * math.sqrt(together / (4_000 * 20))
    # and a batch does not depend on the one before
    assert abs((seen[1:] & seen[:-1]).mean() - 0.04) < 5 * math.sqrt(0.04 / (4_000 * 40)) * 2


def test_the_size_of_a_poisson_batch_varies_as_it_should() -> None:
    cohort = population([40], "poisson", 8, steps=4_000, epochs=800).cohort(torch.arange(1), KEY)
    sizes = cohort.count[0].double()
    assert abs(float(sizes.mean()) - 8) < 5 * math.sqrt(6.4 / 4_000)
    assert abs(float(sizes.var()) - 6.4) < 5 * 6.4 * math.sqrt(2 / 4_000)


def test_poisson_plans_of_many_rounds_share_few_widths() -> None:
    drawn = population([100] * 20, "poisson", 10)
    wide = {drawn.cohort(torch.arange(20), rng.key("round", r)).plan.shape[2] for r in range(100)}
    assert wide <= {26, 30}


def test_a_plan_is_as_wide_as_its_largest_batch_needs() -> None:
    # with batches of 1 out of 1,000, nine at once come now and then
    cohort = population([1_000], "poisson", 1, steps=20_000, epochs=20).cohort(torch.arange(1), KEY)
    assert int(cohort.count.max()) > 5
    assert cohort.plan.shape[2] >= int(cohort.count.max())
    assert (cohort.count == 0).double().mean() == pytest.approx(math.exp(-1), abs=0.02)


def test_the_key_decides() -> None:
    for sampling in ("poisson", "fixed"):
        drawn = population([30, 30], sampling, 5)  # type: ignore[arg-type]
        first, again, other = (drawn.cohort(torch.arange(2), k) for k in (KEY, KEY, rng.key(1)))
        assert real(first, 0) == real(again, 0) != real(other, 0)
        assert real(first, 0) != [[r - 30 for r in rows] for rows in real(first, 1)]  # clients draw on their own
