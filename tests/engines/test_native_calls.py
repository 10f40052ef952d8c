"""Captured operations by their names in Python: the same bits, and nothing that was not certain before."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from atoll.engines.native_calls import _NATIVE, call_natively
from atoll.engines.record_kernels import record

X = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda x: x.view(12, 5),
    "expand": lambda x: x[:1].expand(3, 4, 5) + 0,
    "transpose": lambda x: x.transpose(1, 2) + 0,
    "unsqueeze": lambda x: x.unsqueeze(1) * 2,
    "squeeze": lambda x: x[:, :1].squeeze((1,)) * 2,
    "bmm": lambda x: torch.bmm(x, x.transpose(1, 2)),
    "mm": lambda x: x[0] @ x[1].T,
    "baddbmm": lambda x: torch.baddbmm(x[:, :, :4], x, x.transpose(1, 2)),
    "sums": lambda x: (x + x) * x - x / 2,
    "lt and where": lambda x: torch.where(x < x.transpose(0, 0).neg(), x, x.relu()),
    "clamp": lambda x: x.clamp(0.1),
    "addcmul": lambda x: torch.addcmul(x, x, x),
    "gather": lambda x: x.gather(2, x.argsort(2)),
    "scatter_add": lambda x: torch.zeros_like(x).scatter_add(2, x.argsort(2), x),
    "log_softmax": lambda x: torch._log_softmax(x, 2, False),
    "log_softmax backward": lambda x: torch._log_softmax_backward_data(x, x, 2, torch.float32),
    "cast": lambda x: x.to(torch.float64),
    "copy": lambda x: torch.ops.aten._to_copy(x, dtype=torch.float32),
    "sum of some": lambda x: x.sum([1], keepdim=True),
    "sum of all": lambda x: torch.ops.aten.sum.dim_IntList(x, []),
    "permute": lambda x: x.permute(2, 0, 1) + 0,
    "stack and cat": lambda x: torch.cat([torch.stack([x, x.abs()], 1), x[:, None]], 1),
    "maximum": lambda x: torch.maximum(x, x[0]).reciprocal(),
    "comparisons": lambda x: (x == x[0]) & (x > x[1]) & ~(x <= x[2]) & torch.ops.aten.ne.Scalar(x, 0.5),
    "masked_fill": lambda x: x.masked_fill(x > x[0], float("-inf")),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "vector_norm in float64": lambda x: torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True, dtype=torch.float64),
    "ones_like": lambda x: torch.ones_like(x),
    "ones_like of another type": lambda x: torch.ones_like(x, dtype=torch.int64),
    "view as a number": lambda x: x.sum().view(()) + 1,
}


@pytest.mark.parametrize("name", CALLS)
def test_natively_called_operations_give_the_same_bits(name: str) -> None:
    graph = record(lambda x: [CALLS[name](x)], [X])
    call_natively(graph)
    graph.recompile()
    for x in (X, X * 3 - 1):
        assert torch.equal(graph(x)[0], CALLS[name](x))


def test_every_operation_of_the_table_is_called_above() -> None:
    graphs = [record(lambda x, f=f: [f(x)], [X]).graph for f in CALLS.values()]
    assert set(_NATIVE) <= {node.target for graph in graphs for node in graph.nodes}


@pytest.mark.parametrize("shape", [(6,), (6, 2, 3), (6, 0)])
def test_rows_of_the_data_are_copied_whole(shape: tuple[int, ...]) -> None:
    data = torch.randint(0, 256, shape, dtype=torch.uint8)
    plan = torch.tensor([[5, 0], [2, 2]])
    graph = record(lambda data, plan: [data[plan]], [data, plan])
    call_natively(graph)
    graph.recompile()
    assert "index.Tensor" not in graph.code
    assert torch.equal(graph(data, plan)[0], data[plan])


def test_an_index_that_a_model_reckons_may_be_negative_and_stays_as_it_is() -> None:
    graph = record(lambda data, plan: [data[plan - 3]], [torch.arange(6.0), torch.tensor([0, 1, 4])])
    call_natively(graph)
    graph.recompile()
    assert graph(torch.arange(6.0), torch.tensor([0, 1, 4]))[0].tolist() == [3.0, 4.0, 1.0]


def test_a_copy_stays_a_copy() -> None:
    graph = record(lambda x: [CALLS["copy"](x)], [X])
    call_natively(graph)
    graph.recompile()
    assert graph(X)[0] is not X
