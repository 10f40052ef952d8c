"""Which examples the clients of a cohort see: against plain loops, and whatever stands beside them."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from atoll import rng
from atoll.data import Partition, Population
from atoll.errors import ConfigError, DataError

KEY = rng.key(0, "round", 3)
LISTS = [list(range(0, 7)), [9], list(range(10, 13)), list(range(20, 40)), [8, 7]]
COLUMNS = ("id", "examples", "steps", "plan", "count")


def word(key, epoch, client, position):
    k = rng.threefry(*key.tolist(), epoch, 0)
    a, b = rng.threefry(*k, client, position)
    return a << 32 | b


def batches(rows, client, batch, epochs, shuffle, max_steps, key):
    """One client's batches, with plain loops."""
    seen = []
    for epoch in range(epochs):
        order = sorted(range(len(rows)), key=lambda p: word(key, epoch, client, p)) if shuffle else range(len(rows))
        mixed = [rows[p] for p in order]
        size = batch or len(rows)
        seen += [mixed[i : i + size] for i in range(0, len(rows), size)]
    return seen[:max_steps]


def real(cohort, c):
    """The batches of the c-th client of a cohort, without padding."""
    counts = cohort.count[c, : int(cohort.steps[c])].tolist()
    return [cohort.plan[c, s, :n].tolist() for s, n in enumerate(counts)]


@given(
    lists=st.lists(st.integers(1, 9), min_size=1, max_size=7),
    batch=st.integers(0, 6),
    epochs=st.integers(1, 3),
    shuffle=st.booleans(),
    max_steps=st.none() | st.integers(1, 5),
    data=st.data(),
)
def test_a_cohort_is_what_plain_loops_make(lists, batch, epochs, shuffle, max_steps, data):
    rows = [[100 * c + i for i in range(n)] for c, n in enumerate(lists)]
    ids = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=9))
    population = Population(Partition.from_lists(rows), batch, epochs, shuffle, max_steps)
    cohort = population.cohort(torch.tensor(ids, dtype=torch.int64), KEY)
    wanted = [batches(rows[i], i, batch, epochs, shuffle, max_steps, KEY) for i in ids]
    assert [real(cohort, c) for c in range(len(ids))] == wanted
    assert cohort.id.tolist() == ids
    assert cohort.examples.tolist() == [len(rows[i]) for i in ids]
    assert cohort.steps.tolist() == [len(w) for w in wanted] == population.steps(cohort.id).tolist()
    assert cohort.plan.shape[1] == max((len(w) for w in wanted), default=0)
    for c, i in enumerate(ids):
        assert set(cohort.plan[c].flatten().tolist()) <= set(rows[i])  # padding is a row of the same client
        assert cohort.count[c, int(cohort.steps[c]) :].sum() == 0


@pytest.mark.parametrize("batch", [1, 3, 20, 50])
def test_unshuffled_batches_are_those_of_a_data_loader(batch):
    cohort = Population(Partition.from_lists(LISTS), batch, shuffle=False).cohort(torch.arange(5), KEY)
    for c, rows in enumerate(LISTS):
        assert real(cohort, c) == [b.tolist() for b in DataLoader(rows, batch_size=batch, drop_last=False)]


def test_every_epoch_sees_every_example_once_in_a_new_order():
    cohort = Population(Partition.from_lists(LISTS), 6, epochs=3).cohort(torch.tensor([3]), KEY)
    seen = list(itertools.chain.from_iterable(real(cohort, 0)))
    epochs = [seen[i : i + 20] for i in (0, 20, 40)]
    assert [sorted(e) for e in epochs] == [LISTS[3]] * 3
    assert len({tuple(e) for e in epochs}) == 3
    assert cohort.count.tolist() == [[6, 6, 6, 2] * 3]


def test_the_last_batch_of_an_epoch_is_partial_and_no_batch_crosses_epochs():
    cohort = Population(Partition.from_lists([[0, 1, 2], [3]]), 2, epochs=2, shuffle=False).cohort(torch.arange(2), KEY)
    assert [real(cohort, 0), real(cohort, 1)] == [[[0, 1], [2], [0, 1], [2]], [[3], [3]]]


def test_batch_zero_is_the_whole_client():
    cohort = Population(Partition.from_lists(LISTS), 0, epochs=2).cohort(torch.tensor([0, 2]), KEY)
    assert cohort.plan.shape == (2, 2, 7)
    assert cohort.count.tolist() == [[7, 7], [3, 3]]


def test_a_batch_larger_than_every_client_is_not_padded_beyond_the_largest():
    cohort = Population(Partition.from_lists(LISTS), 64).cohort(torch.tensor([1]), KEY)
    assert cohort.plan.shape == (1, 1, 20)
    assert real(cohort, 0) == [[9]]


@given(ids=st.permutations(range(5)), cut=st.integers(0, 5))
def test_neither_order_nor_chunks_change_what_a_client_sees(ids, cut):
    population = Population(Partition.from_lists(LISTS), 4, epochs=2)
    whole = population.cohort(torch.arange(5), KEY)
    for chunk in (ids[:cut], ids[cut:]):
        part = population.cohort(torch.tensor(chunk, dtype=torch.int64), KEY)
        assert [real(part, c) for c in range(len(chunk))] == [real(whole, i) for i in chunk]


def test_very_uneven_clients_see_what_they_see_alone():
    lists = [list(range(3000)), *([3000 + i] for i in range(50)), [5000, 5001, 5002]]
    population = Population(Partition.from_lists(lists), 16)
    together = population.cohort(torch.arange(52), KEY)
    for i in (0, 7, 51):
        assert real(together, i) == real(population.cohort(torch.tensor([i]), KEY), 0)


def test_a_client_drawn_twice_sees_the_same_rows_twice():
    cohort = Population(Partition.from_lists(LISTS), 4).cohort(torch.tensor([3, 0, 3]), KEY)
    assert real(cohort, 0) == real(cohort, 2)


def test_the_key_decides_the_order_and_nothing_else_does():
    population = Population(Partition.from_lists(LISTS), 4)
    first, again, other = (population.cohort(torch.arange(5), k) for k in (KEY, KEY, rng.key(1)))
    assert all(torch.equal(getattr(first, n), getattr(again, n)) for n in COLUMNS)
    assert not torch.equal(first.plan, other.plan)
    assert all(torch.equal(getattr(first, n), getattr(other, n)) for n in COLUMNS if n != "plan")


def test_every_position_comes_first_equally_often():
    # 20 positions over 2,000 keys, 100 each on average: within five standard deviations
    population = Population(Partition.from_lists(LISTS), 20)
    first = [int(population.cohort(torch.tensor([3]), rng.key(2, i)).plan[0, 0, 0]) for i in range(2_000)]
    seen = np.bincount(first, minlength=40)[20:]
    assert seen.sum() == 2_000
    assert np.abs(seen - 100).max() < 5 * (100 * 0.95) ** 0.5


def test_an_empty_cohort_is_a_cohort():
    for population in (Population(Partition.from_lists(LISTS), b, max_steps=m) for b in (0, 4) for m in (None, 2)):
        cohort = population.cohort(torch.empty(0, dtype=torch.int64), KEY)
        assert len(cohort) == 0
        assert cohort.plan.shape[:2] == (0, 0) == tuple(cohort.count.shape)


def test_a_client_without_rows_takes_no_step():
    partition = Partition(torch.tensor([0, 2, 2]), torch.tensor([5, 6]))  # as a split leaves it
    for batch in (0, 2):
        cohort = Population(partition, batch).cohort(torch.tensor([1, 0]), KEY)
        assert cohort.steps.tolist() == [0, 1]
        assert cohort.count.tolist() == [[0], [2]]
        assert set(cohort.plan.flatten().tolist()) <= {5, 6}
    nobody = Population(Partition(torch.tensor([0, 0]), torch.empty(0, dtype=torch.int64)), 2)
    assert nobody.cohort(torch.tensor([0]), KEY).plan.shape == (1, 0, 1)


def test_only_the_rows_of_the_cohort_are_touched(monkeypatch):
    n = 1_000_000
    population = Population(Partition(torch.arange(0, 3 * n + 1, 3), torch.arange(3 * n)), 2)
    population.cohort(torch.tensor([0]), KEY)  # what is worked out once
    longest = []
    repeat, arange = np.repeat, np.arange
    monkeypatch.setattr(np, "repeat", lambda *a: _noted(longest, repeat(*a)))
    monkeypatch.setattr(np, "arange", lambda *a, **k: _noted(longest, arange(*a, **k)))
    cohort = population.cohort(torch.tensor([0, 999_999]), KEY)
    assert max(longest) <= 2 * 2 * 2
    assert sorted(set(cohort.plan[1].flatten().tolist())) == [2_999_997, 2_999_998, 2_999_999]


def _noted(longest, array):
    longest.append(array.size)
    return array


def test_clients_that_do_not_exist_are_refused():
    population = Population(Partition.from_lists(LISTS), 4)
    for ids in ([5], [-1], [0, 7]):
        with pytest.raises(DataError, match=r"Clients are 0\.\.4"):
            population.cohort(torch.tensor(ids), KEY)


@pytest.mark.parametrize("options", [{"batch": -1}, {"batch": 1, "epochs": 0}, {"batch": 1, "max_steps": 0}])
def test_settings_that_make_no_steps_are_refused(options):
    with pytest.raises(ConfigError, match="must be 1 or more"):
        Population(Partition.from_lists(LISTS), **options)


def test_a_population_counts_its_clients():
    population = Population(Partition.from_lists(LISTS), 4)
    assert population.size == 5
    assert population.sizes.tolist() == [7, 1, 3, 20, 2]
