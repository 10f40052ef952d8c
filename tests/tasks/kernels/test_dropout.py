"""Dropout that draws its mask as it goes is dropout by `keep_mask`, and so are its gradients, of any order."""

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from atoll.core import functional
from atoll.tasks.kernels import dropout as kernel
from atoll.tasks.kernels.dropout import drop


def stack(*shape: int) -> tuple[Tensor, Tensor]:
    """Inputs of some clients, and a key for each."""
    g = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=g), torch.randint(0, 2**32, (shape[0], 2), generator=g)


def ours_and_theirs(monkeypatch: pytest.MonkeyPatch, f: object, *given: Tensor) -> list[Tensor]:
    found = []
    for devices in ({"cpu"}, set()):
        monkeypatch.setattr(kernel, "DEVICES", devices)
        with functional():
            found.append(f(*given))  # type: ignore[operator]
    return found


@pytest.mark.parametrize("per_channel", [False, True])
def test_masks_and_gradients_of_stacked_clients_stay_bit_for_bit(
    per_channel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, keys = stack(3, 4, 5, 7)

    def both(x: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        def loss(x: Tensor) -> Tensor:
            return drop(x, key, 10_009, 0.3, per_channel).pow(3).sum()

        return drop(x, key, 10_009, 0.3, per_channel), grad(loss)(x)

    ours, theirs = ours_and_theirs(monkeypatch, vmap(both), x, keys)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_key_for_each_row_is_a_batch_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    x, keys = stack(6, 7)
    ours, theirs = ours_and_theirs(monkeypatch, lambda x, k: drop(x, k, 2, 0.5, False), x, keys)
    assert torch.equal(ours, theirs)
    alone, _ = ours_and_theirs(monkeypatch, lambda x, k: drop(x, k, 2, 0.5, False), x[3:4], keys[3])
    assert torch.equal(ours[3:4], alone)


def test_gradients_of_examples_within_clients_and_of_gradients_are_the_plain_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, keys = stack(3, 4, 5)
    w = torch.randn(3, 5)

    def per_example(w: Tensor, x: Tensor, key: Tensor) -> Tensor:
        def loss(w: Tensor, row: Tensor) -> Tensor:
            return drop((w * row)[None], key, 0, 0.4, False).pow(2).sum()

        return vmap(grad(loss), in_dims=(None, 0))(w, x)

    ours, theirs = ours_and_theirs(monkeypatch, vmap(per_example), w, x, keys)
    assert torch.equal(ours, theirs)

    def size(w: Tensor, x: Tensor, key: Tensor) -> Tensor:
        return per_example(w, x, key).pow(2).sum()

    ours, theirs = ours_and_theirs(monkeypatch, vmap(grad(size)), w, x, keys)
    torch.testing.assert_close(ours, theirs)


def test_a_gradient_outside_of_vmap_sees_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x, keys = stack(3, 4, 5)

    def outside(x: Tensor, keys: Tensor) -> Tensor:
        start = x.clone().requires_grad_()
        slope = vmap(grad(lambda x, k: drop(x, k, 0, 0.4, False).pow(3).sum()))(start, keys)
        return torch.autograd.grad(slope.pow(2).sum(), start)[0]

    ours, theirs = ours_and_theirs(monkeypatch, outside, x, keys)
    torch.testing.assert_close(ours, theirs)
