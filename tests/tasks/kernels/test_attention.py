"""Attention in one pass is attention step by step, and a transformer of fused parts learns what the plain one does."""

from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from atoll.core import functional
from atoll.tasks.kernels import attention, bias_relu, cross_entropy, dropout, layer_norm
from atoll.tasks.keyed_dropout import forward_pass
from atoll.tasks.layers import make_stackable
from atoll.tasks.models.transformer import TransformerLM
from atoll.tasks.objectives import NextToken

ALL = attention, bias_relu, cross_entropy, dropout, layer_norm
T, V, CLIENTS = 5, 11, 3


def transformer(p: float) -> torch.nn.Module:
    torch.manual_seed(0)
    model = TransformerLM((T,), V, width=8, heads=2, layers=2, feedforward=12, dropout=p)
    return make_stackable(model).train().double()


def gradients(p: float, order: int = 1, key_for_each_row: bool = False) -> dict[str, Tensor]:
    model, g = transformer(p), torch.Generator().manual_seed(0)
    tokens = torch.randint(0, V, (CLIENTS, 4, T + 1), generator=g)
    keys = torch.randint(0, 2**32, (CLIENTS, 4, 2) if key_for_each_row else (CLIENTS, 2), generator=g)
    params = {k: torch.stack([v.detach() * f for f in (1.0, 0.5, -3.0)]) for k, v in model.named_parameters()}

    def loss(params: dict[str, Tensor], tokens: Tensor, key: Tensor) -> Tensor:
        with forward_pass(torch.ones(len(tokens)), key):
            out = functional_call(model, params, (tokens[:, :-1],))
        return NextToken(V).batch_loss(out, tokens[:, 1:], torch.ones(len(tokens)))

    def size(*given: Tensor) -> Tensor:
        return torch.stack([x.pow(2).sum() for x in grad(loss)(*given).values()]).sum()

    with functional():
        return vmap(grad(loss if order == 1 else size))(params, tokens, keys)  # type: ignore[no-any-return]


def fuse(monkeypatch: pytest.MonkeyPatch, parts: tuple[ModuleType, ...]) -> None:
    for part in ALL:
        monkeypatch.setattr(part, "DEVICES", {"cpu"} if part in parts else set())


@pytest.mark.parametrize("parts", [(attention,), ALL], ids=["attention", "all"])
@pytest.mark.parametrize(("p", "order", "key_for_each_row"), [(0.3, 1, False), (0.0, 1, False), (0.3, 1, True)])
def test_gradients_of_a_transformer_are_the_plain_ones(
    parts: tuple[ModuleType, ...], p: float, order: int, key_for_each_row: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fuse(monkeypatch, parts)
    ours = gradients(p, order, key_for_each_row)
    fuse(monkeypatch, ())
    torch.testing.assert_close(ours, gradients(p, order, key_for_each_row))


def test_gradients_of_gradients_of_a_transformer_are_the_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    fuse(monkeypatch, ALL)
    ours = gradients(0.3, order=2)
    fuse(monkeypatch, ())
    torch.testing.assert_close(ours, gradients(0.3, order=2))


def test_long_texts_and_hooked_dropouts_go_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    fuse(monkeypatch, (attention,))
    with functional():
        assert attention.is_short_text(torch.zeros(2, 64, 8), 2)
        assert not attention.is_short_text(torch.zeros(2, 65, 8), 2)
        assert not attention.is_short_text(torch.zeros(2, 5, 260), 2)
    assert not attention.is_short_text(torch.zeros(2, 64, 8), 2)  # outside of an engine
    layer, seen = transformer(0.3).layers[0].attention[1], []  # type: ignore[index,union-attr]
    layer.dropout.register_forward_hook(lambda *_: seen.append(True))
    with functional(), forward_pass(torch.ones(2), torch.tensor([1, 2])):
        layer(torch.randn(2, T, 8, dtype=torch.float64))
    assert seen == [True]
