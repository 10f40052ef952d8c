"""A step of descent and how weights lie, as kernels, are what torch makes of them."""

import pytest
import torch
from torch.fx import GraphModule

from atoll.engines.fx_descent import quicken_descent
from atoll.engines.record_kernels import record
from atoll.tasks.kernels import kernel_layout, plain_layout, takes_scale
from tests.support.interpreter import interpreted, needs_triton

INTERPRETED = """
import torch
from atoll.tasks.kernels import descent, kernel_layout, operators, plain_layout

torch.manual_seed(0)
for devices in ({"cpu"}, set()):
    operators.DEVICES = devices
    for shape in ((1,), (3, 5), (2, 3, 4, 2, 3), (7, 4099)):
        x, y = (kernel_layout(torch.randn(shape)) for _ in range(2))
        for by in (torch.tensor(-0.1), torch.randn(shape[0], *[1] * (len(shape) - 1))):
            found = descent.add_scaled(x, y, by)
            assert found.stride() == x.stride()
            torch.testing.assert_close(found, torch.addcmul(x, y, by), rtol=1e-6, atol=1e-7)
            apart = descent.add_scaled(x, y.contiguous(), by)  # lies differently
            torch.testing.assert_close(apart, torch.addcmul(x, y, by), rtol=1e-6, atol=1e-7)
    for shape in ((2, 3, 70, 3, 3), (1, 1, 1, 5, 2), (2, 2, 64, 1, 1)):
        x = torch.randn(shape)
        assert torch.equal(plain_layout(kernel_layout(x)), x)
        assert plain_layout(kernel_layout(x)).is_contiguous()
"""


@needs_triton
def test_kernels_of_descent_compute_the_same_under_tritons_interpreter() -> None:
    interpreted(INTERPRETED)


def test_the_layout_of_kernels_changes_no_number_and_goes_back() -> None:
    x = torch.randn(4, 5, 3, 2)
    laid = kernel_layout(x.expand(2, 4, 5, 3, 2))
    assert laid.stride()[2] == 1
    assert torch.equal(laid[1], x)
    assert torch.equal(plain_layout(laid), laid)
    assert plain_layout(laid).is_contiguous()
    assert kernel_layout(x) is x


def descents(*inputs: torch.Tensor) -> tuple[GraphModule, list[torch.Tensor]]:
    """A graph of one addcmul, quickened, and what it gives."""
    graph = record(lambda *given: [torch.addcmul(*given)], inputs)
    quicken_descent(graph)
    graph.recompile()
    return graph, graph(*inputs)


@pytest.mark.parametrize(("by", "quick"), [((), True), ((3, 1), True), ((3, 4), False), ((1, 4), False), ((4,), False)])
def test_only_steps_of_descent_become_kernels(by: tuple[int, ...], quick: bool) -> None:
    inputs = torch.randn(3, 4), torch.randn(3, 4), torch.randn(by)
    graph, found = descents(*inputs)
    torch.testing.assert_close(found[0], torch.addcmul(*inputs), rtol=0, atol=0)
    assert any("add_scaled" in str(node.target) for node in graph.graph.nodes) is quick
    assert takes_scale(*(x.shape for x in inputs)) is quick


def test_sums_of_other_kinds_stay() -> None:
    double = tuple(torch.randn(3, 4, dtype=torch.float64) for _ in range(2))
    graph, _ = descents(*double, torch.tensor(0.1, dtype=torch.float64))
    assert not any("add_scaled" in str(node.target) for node in graph.graph.nodes)
