"""An embedding tied to a last layer is torch's, and so are its gradients, of any order."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from atoll.core import functional
from atoll.tasks.class_scores import embedded
from atoll.tasks.kernels import cut_cross_entropy, tied_embedding
from atoll.tasks.kernels import embedding as kernel
from atoll.tasks.keyed_dropout import forward_pass
from atoll.tasks.layers import make_stackable
from atoll.tasks.models.transformer import TransformerLM
from atoll.tasks.objectives import NextToken
from tests.support.interpreter import interpreted, needs_triton

Embedding = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
V, T = 7, 5


@pytest.fixture(autouse=True)
def _on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "DEVICES", {"cpu"})


def plain(tokens: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return F.embedding(tokens, weight), weight


def stack(*shape: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randint(0, V, shape, generator=g), torch.randn(shape[0], V, 3, generator=g, dtype=torch.float64)


def loss(f: Embedding, tokens: Tensor, weight: Tensor) -> Tensor:
    rows, tied = f(tokens, weight)
    return (rows.sin() @ tied.T).pow(2).sum()


@pytest.mark.parametrize("order", [1, 2])
def test_rows_and_gradients_are_those_of_torch(order: int) -> None:
    tokens, weight = stack(3, 2, T)

    def slopes(f: Embedding) -> tuple[Tensor, ...]:
        def size(w: Tensor, tokens: Tensor) -> Tensor:
            slope = grad(lambda w: loss(f, tokens, w))(w)
            return slope.pow(2).sum()

        first = grad(lambda w, tokens: loss(f, tokens, w))
        return *vmap(f)(tokens, weight), vmap(first if order == 1 else grad(size))(weight, tokens)

    with functional():
        ours = slopes(tied_embedding)
    torch.testing.assert_close(ours, slopes(plain))


def test_every_example_within_a_client_has_a_gradient_of_its_own() -> None:
    tokens, weight = stack(3, 4, T)

    def per_example(f: Embedding) -> Tensor:
        return vmap(vmap(grad(lambda w, t: loss(f, t, w)), in_dims=(None, 0)))(weight, tokens)  # type: ignore[no-any-return]

    with functional():
        torch.testing.assert_close(per_example(tied_embedding), per_example(plain))


def test_a_gradient_outside_of_vmap_sees_through_it() -> None:
    tokens, weight = stack(3, T)
    found = []
    for f in (tied_embedding, plain):
        start = weight.clone().requires_grad_()
        with functional():
            slope = vmap(grad(lambda w, t, f=f: loss(f, t, w)))(start, tokens)
        found.append(torch.autograd.grad(slope.pow(2).sum(), start)[0])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("cut", [True, False])
def test_a_tied_transformer_learns_what_the_plain_one_does(cut: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = TransformerLM((T,), V, width=8, heads=2, layers=1, feedforward=12, dropout=0.0)
    model = make_stackable(model).train().double()
    tokens = torch.randint(0, V, (3, 4, T + 1))
    params = {k: torch.stack([v.detach() * f for f in (1.0, 0.5, -3.0)]) for k, v in model.named_parameters()}

    def slopes() -> dict[str, Tensor]:
        def loss(params: dict[str, Tensor], tokens: Tensor) -> Tensor:
            with forward_pass(torch.ones(len(tokens)), None, scored=model):
                out = functional_call(model, params, (tokens[:, :-1],))
            return NextToken(V).batch_loss(out, tokens[:, 1:], torch.ones(len(tokens)))

        with functional():
            return vmap(grad(loss))(params, tokens)  # type: ignore[no-any-return]

    monkeypatch.setattr(cut_cross_entropy, "DEVICES", {"cpu"} if cut else set())
    monkeypatch.setattr(cut_cross_entropy, "MANY", 2)
    monkeypatch.setattr(cut_cross_entropy, "precision", lambda: "tf32")
    taken, added = [], kernel._plainly_added
    monkeypatch.setattr(kernel, "_plainly_added", lambda *given: taken.append(len(given[0])) or added(*given))
    ours = slopes()
    assert taken == [3]
    monkeypatch.setattr(kernel, "DEVICES", set())
    monkeypatch.setattr(cut_cross_entropy, "DEVICES", set())
    torch.testing.assert_close(ours, slopes())


def test_one_that_is_hooked_frozen_or_does_more_is_called_as_ever() -> None:
    def tied(layer: nn.Embedding) -> bool:
        tokens, weights = torch.zeros(2, dtype=torch.int64), layer.weight
        return embedded(tokens, layer)[1] is not weights

    hooked = nn.Embedding(V, 3)
    hooked.register_forward_hook(lambda *_: None)
    with functional():
        assert tied(nn.Embedding(V, 3))
        for layer in (hooked, nn.Embedding(V, 3).requires_grad_(False), nn.Embedding(V, 3, padding_idx=0)):
            assert not tied(layer)
    assert not tied(nn.Embedding(V, 3))  # outside of an engine


PROGRAM = """
import torch
from atoll.tasks.kernels import embedding, operators

torch.set_num_threads(1)
torch.manual_seed(0)
for kind, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 1e-2)):
    for shape, classes, width in (((2, 70), 9, 96), ((5,), 40, 8), ((2, 2, 33), 3, 130), ((1, 1), 1, 1)):
        lead = len(shape) - 1
        by_rows, dense = torch.randn(*shape, width).to(kind), torch.randn(*shape[:lead], classes, width).to(kind)
        tokens, found = torch.randint(0, classes, shape), []
        for devices in ({"cpu"}, set()):
            operators.DEVICES = devices
            given = (by_rows, dense) if devices else (by_rows.double(), dense.double())
            found.append(embedding._Gradient.forward(*given, tokens, lead).double())
        torch.testing.assert_close(*found, atol=10 * tolerance, rtol=tolerance)
"""


@needs_triton
def test_the_kernel_computes_the_same_under_the_interpreter() -> None:
    interpreted(PROGRAM)
