"""Networks, kernels and sorts: one function of the values."""

import itertools

import numpy as np
import pytest
import torch

from atoll.reducers import coordinates
from atoll.reducers.coordinates import mean_around_median, mean_of_ranks, median, reduced
from atoll.reducers.gram import gram, squared_distances
from atoll.reducers.rows import Rows
from atoll.reducers.sorting_network import network, sorted_rows
from tests.support import coordinate_kernels
from tests.support.interpreter import interpreted, needs_triton


def numbers(n: int, d: int) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(n * d))


@pytest.mark.parametrize("n", range(1, 9))
def test_a_network_sorts_every_row_of_zeros_and_ones_and_so_everything(n: int) -> None:
    """The 0-1 principle (Knuth, 5.3.4)."""
    x = torch.tensor(list(itertools.product([0.0, 1.0], repeat=n))).T
    assert torch.equal(torch.stack(sorted_rows(x)), x.sort(0).values)
    for first, last in itertools.combinations_with_replacement(range(n), 2):
        found = sorted_rows(x, first, last)[first : last + 1]
        assert torch.equal(torch.stack(found), x.sort(0).values[first : last + 1])


def test_a_network_for_the_middle_is_smaller_and_leaves_its_rows_alone() -> None:
    assert len(network(20, 9, 10)) < len(network(20))
    x = numbers(20, 50)
    before = x.clone()
    median(x)
    mean_around_median(x, 13)
    assert torch.equal(x, before)


@pytest.mark.parametrize("n", [1, 2, 5, 20, 50, 1100])
def test_means_of_ranks_by_hand(n: int) -> None:
    x = numbers(n, 37)
    cut = n // 4
    ordered = np.sort(x.numpy(), axis=0)
    assert median(x).numpy() == pytest.approx(np.median(x.numpy(), axis=0), abs=1e-6)
    assert mean_of_ranks(x, cut, n - 1 - cut).numpy() == pytest.approx(ordered[cut : n - cut].mean(0), abs=1e-5)


def test_blocks_do_not_show() -> None:
    x = numbers(7, 40_000)
    assert torch.equal(median(x), x.sort(0).values[3])


def test_values_equally_far_from_the_median_share_what_is_left() -> None:
    x = torch.tensor([[0.0, 1.0], [0.0, 2.0], [1.0, 3.0], [2.0, 4.0]])
    assert mean_around_median(x, 2).tolist() == pytest.approx([1 / 3, 2.5])
    assert mean_around_median(x, 1).tolist() == pytest.approx([1 / 3, 2.5])
    assert mean_around_median(x, 4).tolist() == pytest.approx([0.75, 2.5])


def test_small_tensors_go_together_and_large_ones_alone_with_their_types_and_shapes() -> None:
    n = 5
    value = {"a": numbers(n, 40_000), "b": {"c": numbers(n, 6).reshape(n, 2, 3), "d": numbers(n, 1)[:, 0].double()}}
    value["e"] = torch.arange(n)
    found = reduced(value, median)
    assert torch.equal(found["a"], value["a"].median(0).values)
    assert torch.equal(found["b"]["c"], value["b"]["c"].median(0).values)
    assert found["b"]["c"].shape == (2, 3)
    assert found["b"]["d"].dtype == torch.float64
    assert float(found["e"]) == 2.0
    assert reduced({}, median) == {}


@needs_triton
def test_the_kernels_of_coordinates_compute_the_same_under_tritons_interpreter() -> None:
    program = "from tests.support.coordinate_kernels import compare; compare('cpu', (1, 2, 7), 40)"
    interpreted(program)


@pytest.mark.gpu
def test_the_kernels_of_coordinates_compute_the_same_on_a_gpu() -> None:
    coordinate_kernels.compare("cuda", (1, 2, 7, 20, 50, 100), 100_003)


def test_kernels_are_for_floats_on_a_gpu() -> None:
    assert not coordinates._in_kernel(torch.zeros(3, 4))


@pytest.mark.parametrize(("n", "d"), [(1, 5), (4, 3), (9, 5000)])
def test_distances_are_those_of_float64(n: int, d: int) -> None:
    x = numbers(n, d)
    value = {"w": x[:, : d // 2], "v": x[:, d // 2 :]}
    exact = ((x.double()[:, None] - x.double()[None]) ** 2).sum(2)
    assert torch.allclose(squared_distances(value, gram(value, n)), exact, rtol=1e-6)


def test_distances_survive_updates_that_are_nearly_alike_and_wild_ones_beside_them() -> None:
    x = numbers(9, 5000) + 30.0
    x[1] = x[0]
    x[2] = x[0] * (1 + 1e-5)
    x[4] = x[3] + 1e-4 * numbers(1, 5000)[0]
    x[7] = 1e8
    x[8] = 1e8 * (1 + 1e-6)
    exact = ((x.double()[:, None] - x.double()[None]) ** 2).sum(2)
    found = squared_distances({"w": x}, gram({"w": x}, 9))
    assert torch.allclose(found, exact, rtol=1e-5, atol=0.0)
    assert float(found[0, 1]) == 0.0


def test_rows_are_in_the_order_of_ids_whatever_order_they_came_in() -> None:
    x, ids = numbers(4, 6), torch.tensor([7, 1, 9, 3])
    rows = Rows({"w": x}, ids.argsort(), ids.sort().values)
    ordered = x[[1, 3, 0, 2]]
    assert rows.norms.numpy() == pytest.approx(ordered.norm(dim=1).numpy(), rel=1e-6)
    assert torch.allclose(rows.gram, (ordered.double() @ ordered.double().T), rtol=1e-5, atol=1e-6)
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4])
    assert torch.allclose(rows.combined(weights)["w"], weights @ ordered, atol=1e-6)
    assert torch.allclose(rows.combined(torch.tensor([0.0, 1.0, 0.0, 0.0]))["w"], ordered[1])
    mixing = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)).double()
    assert torch.allclose(rows.mixed(mixing)["w"], mixing.float() @ ordered, atol=1e-6)
    assert torch.equal(rows.factors(weights)["w"][[1, 3, 0, 2]], weights)
    assert torch.equal(rows.columns(torch.tensor([0, 5])), ordered[:, [0, 5]].double())
