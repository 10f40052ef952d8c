"""The Triton kernels of dropout, losses, norms and attention compute what their plain forms do (interpreted)."""

import pytest

from tests.support.interpreter import interpreted, needs_triton

SETUP = """
import torch
from atoll.tasks.kernels import attention, bias_relu, cross_entropy, dropout, layer_norm, operators

torch.set_num_threads(1)
torch.manual_seed(0)
KINDS = ((torch.float32, 1e-5), (torch.bfloat16, 5e-2))  # the interpreter cuts numbers off where a GPU rounds them


def keys(*shape):
    return torch.randint(0, 2**32, (*shape, 2))


def both(f, *given, double=False):
    operators.DEVICES = {"cpu"}
    ours = f(*given)
    operators.DEVICES = set()
    theirs = f(*(x.double() if double and isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in given))
    operators.DEVICES = {"cpu"}
    return ours, theirs


def alike(ours, theirs, tolerance):
    ours, theirs = (x if isinstance(x, tuple) else (x,) for x in (ours, theirs))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.double(), b.double(), atol=10 * tolerance, rtol=tolerance)
"""
DROPOUT = """
for kind, _ in KINDS:
    for shape in ((2, 3, 7), (1, 1, 5), (2, 2, 2100), (2, 3, 4, 3, 5), (3, 2, 5, 3, 4)):
        x = torch.randn(shape).to(kind)
        last = x.movedim(2, -1).contiguous().movedim(-1, 2)
        for given in (x, last) if len(shape) > 3 else (x,):
            for key in (keys(shape[0]), keys(*shape[:2])):
                for per_channel in {False, len(shape) > 3}:
                    ours, theirs = both(dropout._Dropout.forward, given, key, 1, dropout.salt(70_001), 0.3, per_channel)
                    assert torch.equal(ours == 0, theirs == 0)
                    assert ours.stride() == given.stride()
                    alike(ours, theirs, 0.0 if kind == torch.float32 else 1e-2)
for lead, x in ((0, torch.randn(4, 6)), (2, torch.randn(4, 6).expand(3, 2, 4, 6))):
    ours, theirs = both(dropout._Dropout.forward, x, keys(*x.shape[:lead]), lead, dropout.salt(1), 0.3, False)
    assert torch.equal(ours, theirs)
"""
BIAS_RELU = """
for kind, tolerance in KINDS:
    for lead, shape in ((1, (2, 3, 5, 7)), (0, (3, 9)), (1, (1, 70, 130)), (2, (2, 2, 3, 4, 6))):
        x, g = (torch.randn(shape).to(kind) for _ in range(2))
        bias = torch.randn(*shape[:lead], shape[-1]).to(kind)
        for key, p in ((keys(*shape[:lead]), 0.3), (None, 0.0)):
            h, theirs = both(bias_relu._BiasReluDropout.forward, x, bias, key, lead, dropout.salt(3), p)
            alike(h, theirs, tolerance)
            alike(*both(bias_relu._Gradient.forward, g, h, lead, 1 / (1 - p)), tolerance)
"""
CROSS_ENTROPY = """
for kind, tolerance in KINDS:
    for shape in ((2, 3, 10), (5, 2), (1, 1), (3, 1000), (2, 2, 2500), (1, 2048), (131, 62)):
        x, y = (5 * torch.randn(shape)).to(kind), torch.randint(0, shape[-1], shape[:-1])
        (losses, lse), theirs = both(cross_entropy._CrossEntropy.forward, x, y, double=True)
        alike((losses, lse), theirs, tolerance)
        given = x, y, lse, torch.randn(shape[:-1]).to(kind)
        alike(*both(cross_entropy._Gradient.forward, *given, double=True), tolerance)
x = torch.full((1, 3000), float("-inf"))
x[0, 7], x[0, 2500] = 2.0, 1.0
(losses, lse), theirs = both(cross_entropy._CrossEntropy.forward, x, torch.tensor([7]))
alike((losses, lse), theirs, 1e-6)
assert cross_entropy._CrossEntropy.forward(torch.tensor([[float("nan"), 1.0]]), torch.tensor([1]))[0].isnan().all()
"""
LAYER_NORM = """
for kind, tolerance in KINDS:
    for lead, shape in ((1, (2, 3, 5, 96)), (0, (3, 9)), (1, (1, 70, 130)), (2, (2, 2, 3, 4, 6)), (1, (3, 1, 2, 2100))):
        x, g = ((2 + torch.randn(shape)).to(kind) for _ in range(2))
        weight, bias = (torch.randn(*shape[:lead], shape[-1]).to(kind) for _ in range(2))
        alike(*both(layer_norm._LayerNorm.forward, x, weight, bias, lead, 1e-5, double=True), tolerance)
        alike(*both(layer_norm._Gradient.forward, g, x, weight, lead, 1e-5, double=True), tolerance)
"""
ATTENTION = """
for kind, tolerance in KINDS:
    for lead, shape, heads in (
        (1, (2, 3, 20, 72), 2), (0, (3, 5, 27), 3), (1, (1, 1, 1, 12), 4), (2, (2, 2, 3, 33, 60), 1)
    ):
        x, g = torch.randn(shape).to(kind), torch.randn(*shape[:-1], shape[-1] // 3).to(kind)
        for key, p in ((None, 0.0), (keys(*shape[:lead]), 0.4), (keys(*shape[: lead + 1]), 0.4)):
            how = key, lead, dropout.salt(9), p, heads
            alike(*both(attention._Attention.forward, x, *how, double=True), tolerance)
            alike(*both(attention._Gradient.forward, g, x, *how, double=True), tolerance)
"""


@needs_triton
@pytest.mark.parametrize(
    "program",
    [DROPOUT, BIAS_RELU, CROSS_ENTROPY, LAYER_NORM, ATTENTION],
    ids=["dropout", "bias_relu", "cross_entropy", "layer_norm", "attention"],
)
def test_the_kernels_compute_the_same_under_the_interpreter(program: str) -> None:
    interpreted(SETUP + program)
