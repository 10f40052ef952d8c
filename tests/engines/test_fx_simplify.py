"""A lean graph computes what the whole one does, with fewer operations, as often as it is called."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from atoll.engines.fx_simplify import lean

X = torch.arange(6.0).reshape(2, 3)


def in_place(x: Tensor) -> list[Tensor]:
    return [x + torch.arange(3).mul_(2)]


def in_place_through_a_view(x: Tensor) -> list[Tensor]:
    made = torch.zeros_like(x)
    made.view(-1).add_(1)
    return [x * made]


def handed_out(x: Tensor) -> list[Tensor]:
    return [torch.ones_like(x), x]


def handed_out_and_used(x: Tensor) -> list[Tensor]:
    ones = torch.ones_like(x)
    return [ones, (x + 1) * ones.abs()]


def in_place_after_ones(x: Tensor) -> list[Tensor]:
    ones = torch.ones_like(x)
    ones.view(-1).add_(1)
    return [(x + 1) * ones]


CASES: dict[str, tuple[Callable[[Tensor], list[Tensor]], int]] = {
    "constants": (lambda x: [x * torch.arange(3) + torch.zeros_like(x)], 2),
    "a product with ones": (lambda x: [(x + 1) * torch.ones_like(x)], 1),
    "a product with one": (lambda x: [torch.ops.aten.mul.Scalar(x, 1) + 1], 1),
    "views to the same shape": (lambda x: [x.view(2, 3).expand(2, 3) + 1], 1),
    "two transpositions": (lambda x: [x.transpose(0, 1).transpose(0, 1) + 1], 1),
    "slices of everything": (lambda x: [x[0:][:, 0:3] + 1], 1),
    "slices of a part stay": (lambda x: [x[:, 1:] + 1], 2),
    "axes in their order": (lambda x: [x.permute(0, 1) + 1], 1),
    "axes in another order stay": (lambda x: [x.permute(1, 0) + 1], 2),
    "not and not": (lambda x: [~~(x > 1)], 1),
    "not stays": (lambda x: [~(x > 1)], 2),
    "a product with ones that are handed out": (lambda x: handed_out_and_used(x), 2),
    "a number of another type": (lambda x: [x + torch.ops.aten._to_copy.default(2, dtype=torch.float32)], 1),
    "ones that broadcast stay": (lambda x: [x[:1] * torch.ones_like(x)], 2),
    "what is changed in place stays": (in_place, 3),
    "what is changed through a view stays": (in_place_through_a_view, 4),
    "ones that are changed in place stay": (in_place_after_ones, 5),
    "what is handed out stays": (handed_out, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_a_lean_graph_gives_the_same_numbers_every_time(case: str) -> None:
    f, operations = CASES[case]
    graph = make_fx(f)(X)
    made = lean(graph, X.device)
    for x in (X, X * 2, X):  # again and again: nothing is left behind
        assert all(torch.equal(a, b) for a, b in zip(made(x), f(x), strict=True))
    assert sum(n.op == "call_function" for n in graph.graph.nodes) == operations
