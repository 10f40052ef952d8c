"""Layer normalisation of stacked clients is torch's, and so are its gradients, of any order."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from atoll.core import functional
from atoll.tasks.kernels import LayerNorm, is_replaceable_layer_norm
from atoll.tasks.kernels import layer_norm as kernel
from atoll.tasks.layers import make_stackable


@pytest.fixture(autouse=True)
def _on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "DEVICES", {"cpu"})


def stack(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    weights = (torch.randn(shape[0], shape[-1], generator=g) for _ in range(2))
    return 2 + torch.randn(*shape, generator=g), *weights  # type: ignore[return-value]


def norm(layer: type[nn.LayerNorm], x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    out: Tensor = functional_call(layer(x.shape[-1]), {"weight": w, "bias": b}, (x,))
    return out


@pytest.mark.parametrize("shape", [(3, 4, 5, 6), (2, 7, 3), (1, 1, 2)])
@pytest.mark.parametrize("order", [1, 2])
def test_outputs_and_gradients_are_those_of_torch(shape: tuple[int, ...], order: int) -> None:
    given = [x.double() for x in stack(*shape)]

    def slopes(layer: type[nn.LayerNorm]) -> tuple[Tensor, ...]:
        def loss(*given: Tensor) -> Tensor:
            return norm(layer, *given).sin().sum()

        def size(*given: Tensor) -> Tensor:
            return torch.stack([s.pow(2).sum() for s in grad(loss, argnums=(0, 1, 2))(*given)]).sum()

        out = vmap(lambda *given: norm(layer, *given))(*given)
        return out, *vmap(grad(loss if order == 1 else size, argnums=(0, 1, 2)))(*given)

    with functional():
        ours = slopes(LayerNorm)
    torch.testing.assert_close(ours, slopes(nn.LayerNorm))


def test_every_example_within_a_client_has_a_gradient_of_its_own() -> None:
    x, w, b = stack(3, 4, 5, 6)

    def per_example(layer: type[nn.LayerNorm]) -> tuple[Tensor, ...]:
        def loss(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            return norm(layer, x[None], w, b).sin().sum()

        return vmap(vmap(grad(loss, argnums=(1, 2)), in_dims=(0, None, None)))(x, w, b)  # type: ignore[no-any-return]

    with functional():
        ours = per_example(LayerNorm)
    torch.testing.assert_close(ours, per_example(nn.LayerNorm), rtol=1e-4, atol=1e-5)


def test_a_gradient_outside_of_vmap_sees_through_it() -> None:
    x, w, b = stack(3, 4, 6)
    found = []
    for layer in (LayerNorm, nn.LayerNorm):
        start = x.double().requires_grad_()
        with functional():
            slope = vmap(grad(lambda x, w, b, layer=layer: norm(layer, x, w, b).sin().sum()))(
                start, w.double(), b.double()
            )
        found.append(torch.autograd.grad(slope.pow(2).sum(), start)[0])
    torch.testing.assert_close(*found)


def test_one_over_the_last_axis_is_replaced_and_outside_an_engine_the_plain_one() -> None:
    model = nn.Sequential(nn.LayerNorm(4))
    stackable = make_stackable(model)
    assert isinstance(stackable[0], LayerNorm)
    assert type(model[0]) is nn.LayerNorm
    x = torch.randn(2, 3, 4)
    assert torch.equal(stackable(x), model(x))
    assert not is_replaceable_layer_norm(nn.LayerNorm((3, 4)))
    assert not is_replaceable_layer_norm(nn.LayerNorm(4, bias=False))
    assert not is_replaceable_layer_norm(nn.LayerNorm(4, elementwise_affine=False))
