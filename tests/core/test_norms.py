"""The length of an update whose tensors are still to be multiplied: that of the product, which is never written."""

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from atoll import rng, tree
from atoll.core import l1_norm, l2_norm
from atoll.core.norms import Norm, factored_norm
from atoll.tree import Tree

VALUE: Tree = {
    "a": rng.normal(rng.key("a"), (3, 40, 30)),
    "b": {"c": 9.0 * rng.normal(rng.key("c"), (3, 1025)), "d": rng.normal(rng.key("d"), (3,))},
}
ONE, OTHER = torch.tensor([0.5, -2.0, 0.0]), torch.tensor([3.0, 0.25, 1.0])
FACTORS: dict[str, Tree] = {
    "none": {},
    "one for all": {"a": ONE, "b": {"c": ONE, "d": ONE}},
    "two, shared": {"a": ONE, "b": {"c": OTHER, "d": ONE}},
    "each its own": {"a": ONE, "b": {"c": OTHER, "d": ONE * OTHER}},
}


def oracle(value: Tree, by: Tree, norm: Norm) -> Tensor:
    product = value if not by else tree.map(lambda x, f: x.double() * f, value, by)
    numbers = torch.cat([x.double().flatten() for x in tree.leaves(product)])
    return numbers.abs().sum() if norm == "l1" else numbers.square().sum().sqrt()


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("factors", FACTORS)
def test_a_factored_norm_is_the_norm_of_the_product(factors: str, norm: Norm) -> None:
    by = FACTORS[factors]
    for c in range(3):
        value, mine = tree.rows(VALUE, c), tree.rows(by, c) if by else {}
        assert float(factored_norm(value, mine, norm)) == pytest.approx(float(oracle(value, mine, norm)), rel=3e-6)


def test_stacked_clients_are_measured_as_each_alone() -> None:
    def one(value: Tree, factor: Tensor, other: Tensor) -> Tensor:
        return factored_norm(value, {"a": factor, "b": {"c": other, "d": factor}}, "l2")

    stacked = vmap(one)(VALUE, ONE, OTHER)
    alone = torch.stack([one(tree.rows(VALUE, c), ONE[c], OTHER[c]) for c in range(3)])
    assert torch.allclose(stacked, alone, rtol=1e-6)


@pytest.mark.parametrize("x", [0.0, -3.5, 1e-30, 3e38, float("inf"), float("nan")])
def test_the_length_of_one_number_is_its_size(x: float) -> None:
    for norm in (l2_norm, l1_norm):
        assert torch.equal(norm({"x": torch.tensor(x)}).nan_to_num(7.0), torch.tensor(x).abs().nan_to_num(7.0))


def test_an_empty_update_has_no_length() -> None:
    assert float(l2_norm({})) == float(l1_norm({})) == float(factored_norm({}, {}, "l2")) == 0.0
