"""What a graph computes twice is computed once, and only where nobody could tell."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from atoll.engines.fx_repeated import merge_repeated
from atoll.engines.record_kernels import record

X = torch.arange(6.0).reshape(2, 3) - 2


def in_place(x: Tensor) -> list[Tensor]:
    made = x + 1
    first = made.exp()
    made.add_(1)
    return [first * made.exp()]


def in_place_behind_a_view(x: Tensor) -> list[Tensor]:
    made = x + 1
    view = made.view(-1)
    first = view.exp()
    made.add_(1)
    return [first * view.exp()]


CASES: dict[str, tuple[Callable[[Tensor], list[Tensor]], int]] = {
    "the same product": (lambda x: [(x * 3).exp() - (x * 3).exp()], 3),
    "what follows from it, too": (lambda x: [x.exp().sum(1) + x.exp().sum(1)], 3),
    "in lists": (lambda x: [torch.cat([x.abs(), x], 1) + torch.cat([x.abs(), x], 1)], 3),
    "other numbers stay": (lambda x: [x.sum(0) + x.sum(0, keepdim=True) + x.sum(1)[0]], 6),
    "a whole number is not its float": (lambda x: [(x.long() * 2).float() + (x.long() * 2.0)], 5),
    "keywords are looked at": (lambda x: [x.double() + x.half()], 3),
    "what is handed out stays one each": (lambda x: [x + 1, x + 1], 2),
    "what is changed in place stays": (in_place, 5),
    "what is changed behind a view stays": (in_place_behind_a_view, 6),
}


@pytest.mark.parametrize("case", CASES)
def test_a_graph_without_repetitions_gives_the_same_numbers(case: str) -> None:
    f, operations = CASES[case]
    graph = record(f, [X])
    merge_repeated(graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    for x in (X, X * 2, X):
        ours = graph(x)
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(ours, f(x), strict=True))
        assert len({id(a) for a in ours}) == len(ours)
    assert sum(n.op == "call_function" for n in graph.graph.nodes) == operations


def test_two_draws_stay_two_draws() -> None:
    graph = record(lambda x: [torch.rand_like(x) - torch.rand_like(x)], [X])
    merge_repeated(graph)
    graph.recompile()
    assert bool((graph(X)[0] != 0).any())
