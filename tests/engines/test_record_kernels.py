"""Recorded kernels: the same numbers as the function they were recorded from, for other inputs too."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from atoll.core import functional, gradient_and_value
from atoll.engines.fx_simplify import lean
from atoll.engines.record_kernels import record

TABLE = torch.arange(12.0).reshape(3, 4)


def gradients(w: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    def one(w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        def loss(p: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            out = torch.relu(x @ p["w"])
            return torch.nn.functional.cross_entropy(out, y), {"out": out}

        g, (value, aux) = gradient_and_value(loss, {"w": w})
        return w - 0.1 * g["w"], value + aux["out"].sum()

    with functional():
        return list(vmap(one)(w, x, y))


def in_place(x: Tensor) -> list[Tensor]:
    sums = torch.zeros_like(x)
    sums.add_(x).mul_(2.0)
    sums[0] = 1.0
    return [sums + 1.0, sums]


def several_outputs(x: Tensor) -> list[Tensor]:
    most, where = x.max(dim=0)
    left, right = torch.split(x, [1, 2])
    return [most, where, left + right.sum(0)]


def constants(x: Tensor) -> list[Tensor]:
    return [x + TABLE, x * torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.arange(3)[:, None] * x, x]


def _batch(seed: int) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [
        torch.randn(5, 3, 4, generator=g),
        torch.randn(5, 6, 3, generator=g),
        torch.randint(4, (5, 6), generator=g),
    ]


def _rows(seed: int) -> list[Tensor]:
    return [torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))]


@pytest.mark.parametrize(
    ("f", "drawn"), [(gradients, _batch), (in_place, _rows), (several_outputs, _rows), (constants, _rows)]
)
@pytest.mark.parametrize("simplified", [False, True])
def test_a_recording_gives_the_same_bits_for_other_inputs(
    f: Callable[..., list[Tensor]], drawn: Callable[[int], list[Tensor]], simplified: bool
) -> None:
    with torch.no_grad():
        graph = record(f, drawn(0))
        replay = lean(graph, torch.device("cpu")) if simplified else graph
        for seed in (0, 1, 2):
            for ours, theirs in zip(replay(*drawn(seed)), f(*drawn(seed)), strict=True):
                assert torch.equal(ours, theirs)


def test_what_depends_on_a_number_is_not_recorded() -> None:
    def picky(x: Tensor) -> list[Tensor]:
        return [x if x.sum() > 0 else -x]

    with pytest.raises(RuntimeError, match="a number is read"):
        record(picky, _rows(0))
