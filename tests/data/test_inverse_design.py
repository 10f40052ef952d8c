"""From the skew that is wanted to the alpha that gives it."""

import doctest

import numpy as np
import pytest
import torch

from atoll import rng
from atoll.data import label_skew
from atoll.data.partition import Designed, Dirichlet
from atoll.data.partition import inverse_design as module
from atoll.data.partition.inverse_design import design
from atoll.errors import PartitionError
from tests.support.marks import slow

SIZES = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # MNIST's digits
MNIST = torch.from_numpy(np.repeat(np.arange(10), SIZES))
KEY = rng.key(0, "partition")


@pytest.mark.parametrize("target", [0.2, 0.6, 0.9, 1.2])
@pytest.mark.parametrize("seed", [0, 1])
def test_mnist_in_fifty_clients_has_the_skew_asked_for(target, seed):
    key = rng.key(seed)
    found = design(MNIST, clients=50, target_emd=target, minimum=20, key=key)
    made = Dirichlet(50, found.alpha, minimum=20)(MNIST, {}, len(MNIST), key)
    assert label_skew(made, MNIST).emd == pytest.approx(found.emd)
    assert abs(found.emd - target) <= 0.02
    assert int(made.sizes.min()) == found.smallest >= 20


def test_more_skew_needs_a_smaller_alpha():
    alphas = [design(MNIST, 50, target, 20, KEY).alpha for target in (0.2, 0.5, 0.8, 1.1)]
    assert alphas == sorted(alphas, reverse=True)


def test_a_partition_can_be_asked_for_by_its_skew():
    p = Designed(50, emd=0.6, minimum=20)(MNIST, {}, len(MNIST), KEY)
    assert abs(label_skew(p, MNIST).emd - 0.6) <= 0.02
    assert int(p.sizes.min()) >= 20
    assert "Designed(clients=50, emd=0.6, minimum=20) = Dirichlet(clients=50, alpha=" in p.provenance
    again = Designed(50, emd=0.6, minimum=20)(MNIST, {}, len(MNIST), KEY)
    assert p.digest() == again.digest()


@pytest.mark.parametrize(
    ("labels", "clients", "target", "minimum", "message"),
    [
        (
            MNIST,
            50,
            1.9,
            20,
            r"partition\.emd: 1\.9 is not between 0 and 1\.80, the EMD of clients with one class each",
        ),
        slow(
            MNIST, 50, 1.5, 200, r"with at least 200 examples each, 50 clients reach \d\.\d\d \(alpha = .*\), not 1\.5"
        ),
        (torch.tensor([0] * 10 + [1]), 2, 0.1, 2, r"with so few examples the draws go down to 0\.1\d, not 0\.1"),
        (MNIST[:30], 20, 0.5, 2, r"20 clients of at least 2 need 40 examples, and there are 30"),
        slow(torch.arange(102) % 3, 50, 0.5, 2, r"no alpha gives 50 clients at least 2 examples each"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(labels, clients, target, minimum, message):
    with pytest.raises(PartitionError, match=message):
        design(labels, clients, target, minimum, KEY)


def test_data_without_classes_has_no_label_skew():
    with pytest.raises(PartitionError, match="this data has no classes"):
        Designed(5, 0.5)(None, {}, 100, KEY)


def test_the_example_in_the_docs_runs():
    assert doctest.testmod(module).failed == 0
