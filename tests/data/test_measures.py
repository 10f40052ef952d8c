"""How unlike clients are, by hand."""

import doctest

import numpy as np
import pytest
import torch

from atoll import rng
from atoll.data import Partition, label_skew
from atoll.data.measures import count_table as table
from atoll.data.measures import (
    effective_classes,
    emd,
    feature_shift,
    gradient_dissimilarity,
    gradients,
    jensen_shannon,
    label_counts,
    label_entropy,
    labels,
    size_gini,
    total_variation,
)
from atoll.errors import DataError

# Two clients, three classes: p = (3/4, 1/4, 0) and (0, 1/2, 1/2), sizes 4 and 2, q = (3/6, 2/6, 1/6).
HAND = np.array([[3, 1, 0], [0, 1, 1]])
ALIKE = np.array([[2, 2], [1, 1], [5, 5]])
APART = np.array([[4, 0], [0, 4]])


def test_distances_by_hand():
    first = abs(3 / 4 - 1 / 2) + abs(1 / 4 - 1 / 3) + 1 / 6  # 1/2
    second = 1 / 2 + abs(1 / 2 - 1 / 3) + abs(1 / 2 - 1 / 6)  # 1
    assert (first, second) == (pytest.approx(1 / 2), pytest.approx(1))
    assert total_variation(HAND) == pytest.approx((1 / 4 + 1 / 2) / 2)
    assert emd(HAND) == pytest.approx((4 * 1 / 2 + 2 * 1) / 6)


def test_entropies_by_hand():
    first = 2 - 0.75 * np.log2(3)  # H(3/4, 1/4)
    assert label_entropy(HAND) == pytest.approx((first + 1) / 2)
    assert effective_classes(HAND) == pytest.approx((4 / 3**0.75 + 2) / 2)
    # one class each, of two: H((3/4, 1/4)) - (0 + 1) / 2
    assert jensen_shannon(APART) == pytest.approx(first - 1 / 2)


def test_the_ends_of_every_scale():
    for measure in (total_variation, emd, jensen_shannon):
        assert measure(ALIKE) == 0
    assert (label_entropy(ALIKE), effective_classes(ALIKE)) == (1.0, 2.0)
    assert (label_entropy(APART), effective_classes(APART)) == (0.0, 1.0)
    one_each = np.eye(100, dtype=np.int64)
    assert total_variation(one_each) == pytest.approx(0.99)
    assert emd(one_each) == pytest.approx(1.98)
    assert 0.9 < jensen_shannon(one_each) < 1


def test_clients_without_rows_do_not_count():
    with_empty = np.concatenate([HAND, np.zeros((2, 3), np.int64)])
    for measure in (total_variation, emd, jensen_shannon, label_entropy, effective_classes):
        assert measure(with_empty) == measure(HAND)


def test_emd_counts_examples_and_total_variation_counts_clients():
    many = np.array([[98, 98], [4, 0]])  # nearly all examples are where nothing is skewed
    assert emd(many) < 0.1
    assert total_variation(many) > 0.2


def test_a_partition_has_all_of_them_at_once():
    p = Partition.from_lists([[0, 1, 2, 3], [4, 5]])
    y = torch.tensor([0, 0, 0, 1, 1, 2])
    assert label_counts(p, y).tolist() == HAND.tolist()
    skew = label_skew(p, y)
    assert skew.emd == emd(HAND)
    assert skew.total_variation == total_variation(HAND)
    assert skew.jensen_shannon == jensen_shannon(HAND)
    assert skew.label_entropy == label_entropy(HAND)
    assert skew.effective_classes == effective_classes(HAND)
    assert skew.gini == size_gini(torch.tensor([4, 2])) == pytest.approx(1 / 6)


def test_gini_by_hand():
    assert size_gini(torch.tensor([5, 5, 5])) == 0
    assert size_gini(torch.tensor([1, 1, 1, 97])) == pytest.approx(0.72)  # sum |a - b| = 2 * 3 * 96, over 2 * 4 * 100
    assert size_gini(torch.tensor([97, 1, 1, 1])) == pytest.approx(0.72)


def test_gradients_that_agree_and_that_do_not():
    g = torch.tensor([[3.0, 4.0], [3.0, 4.0]])
    assert gradient_dissimilarity(g) == pytest.approx(1)
    assert gradient_dissimilarity(torch.eye(5)) == pytest.approx(5)
    assert gradient_dissimilarity(torch.tensor([[1.0], [-1.0]])) == float("inf")
    assert gradient_dissimilarity(torch.zeros(3, 2)) == 1.0
    # weights 3 and 1: (3 * 1 + 1 * 4) / 4 over |(3 * 1 + 2) / 4|^2
    pulled = gradient_dissimilarity(torch.tensor([[1.0], [2.0]]), torch.tensor([3, 1]))
    assert pulled == pytest.approx((7 / 4) / (5 / 4) ** 2)


def clients_of(sizes):
    return Partition.from_lists(torch.arange(sum(sizes)).split(sizes))


def test_inputs_alike_cannot_be_told_apart_and_shifted_ones_can():
    # an AUROC of 200 against 200 rows has a standard error below 0.03, and there are four: five of them are 0.075
    x = rng.normal(rng.key(1), (800, 5))
    p = clients_of([200] * 4)
    alike = feature_shift(x, p, rng.key(0))
    assert alike.score < 0.15
    assert not np.isnan(alike.auroc).any()
    moved = x.clone()
    moved[:200] += 3
    apart = feature_shift(moved, p, rng.key(0))
    assert apart.auroc[0] > 0.99
    assert apart.auroc[0] > apart.auroc[1:].max()


def test_the_shift_of_known_gaussians_is_known():
    # one dimension, means d apart, one deviation: AUROC = Phi(d / sqrt 2); 0.7602 at d = 1
    x = rng.normal(rng.key(2), (1000, 1))
    x[:500] += 1
    found = feature_shift(x, clients_of([500, 500]), rng.key(0))
    assert found.auroc == pytest.approx(0.7602, abs=0.06)  # four standard errors
    assert found.score == pytest.approx(0.52, abs=0.12)


def test_small_clients_are_passed_over_and_many_are_sampled():
    x = rng.normal(rng.key(3), (200, 2))
    found = feature_shift(x, clients_of([5, 65, 65, 65]), rng.key(0))
    assert np.isnan(found.auroc).tolist() == [True, False, False, False]
    some = feature_shift(x, clients_of([20] * 10), rng.key(0), clients=3)
    assert (~np.isnan(some.auroc)).sum() == 3
    again = feature_shift(x, clients_of([20] * 10), rng.key(0), clients=3)
    assert np.array_equal(some.auroc, again.auroc, equal_nan=True)
    with pytest.raises(DataError, match="no client has 10 rows"):
        feature_shift(x[:18], clients_of([9, 9]), rng.key(0))


@pytest.mark.parametrize("module", [table, labels, gradients])
def test_the_examples_in_the_docs_run(module):
    assert doctest.testmod(module).failed == 0
