"""Cross-entropy in one pass is torch's, and so are its gradients, of any order."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from atoll.core import functional
from atoll.tasks.kernels import cross_entropy as kernel
from atoll.tasks.kernels.cross_entropy import cross_entropy_rows


@pytest.fixture(autouse=True)
def _on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "DEVICES", {"cpu"})


def stack(*shape: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return 3 * torch.randn(*shape, generator=g), torch.randint(0, shape[-1], shape[:-1], generator=g)


def plain(logits: Tensor, y: Tensor) -> Tensor:
    return -F.log_softmax(logits, -1).gather(-1, y[..., None]).squeeze(-1)


@pytest.mark.parametrize("shape", [(3, 4, 10), (2, 3, 5, 1030), (1, 1, 2)])
@pytest.mark.parametrize("order", [1, 2])
def test_losses_and_gradients_are_those_of_torch(shape: tuple[int, ...], order: int) -> None:
    logits, y = stack(*shape)

    def slopes(f: object) -> tuple[Tensor, Tensor]:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            return f(x, y).pow(2).sum()  # type: ignore[operator,no-any-return]

        def size(x: Tensor, y: Tensor) -> Tensor:
            return grad(loss)(x, y).pow(2).sum()

        return vmap(f)(logits, y), vmap(grad(loss if order == 1 else size))(logits, y)  # type: ignore[arg-type]

    with functional():
        ours = slopes(cross_entropy_rows)
    torch.testing.assert_close(ours, slopes(plain), rtol=1e-4, atol=1e-5)


def test_every_example_within_a_client_has_a_gradient_of_its_own() -> None:
    x, y = stack(3, 4, 6)
    w = torch.randn(3, 6)

    def per_example(f: object) -> Tensor:
        def loss(w: Tensor, row: Tensor, y: Tensor) -> Tensor:
            return f((w * row)[None], y[None]).sum()  # type: ignore[operator,no-any-return]

        return vmap(vmap(grad(loss), in_dims=(None, 0, 0)))(w, x, y)

    with functional():
        torch.testing.assert_close(per_example(cross_entropy_rows), per_example(plain))


def test_a_gradient_outside_of_vmap_sees_through_it() -> None:
    x, y = stack(3, 4, 6)
    found = []
    for f in (cross_entropy_rows, plain):
        start = x.clone().requires_grad_()
        with functional():
            slope = vmap(grad(lambda x, y, f=f: f(x, y).sum()))(start, y)
        found.append(torch.autograd.grad(slope.pow(2).sum(), start)[0])
    torch.testing.assert_close(*found)


def test_outside_of_an_engine_it_is_the_plain_one() -> None:
    x, y = stack(4, 6)
    assert torch.equal(cross_entropy_rows(x, y), plain(x, y))
