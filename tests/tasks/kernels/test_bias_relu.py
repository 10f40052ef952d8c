"""A linear layer, a ReLU and a dropout as one pass are what they are one after another, and so are their gradients."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import atoll
from atoll.core import functional
from atoll.engines.capture import Captured
from atoll.engines.vector import stacked
from atoll.tasks import sequential
from atoll.tasks.kernels import bias_relu, cross_entropy, dropout, layer_norm
from atoll.tasks.keyed_dropout import forward_pass
from atoll.tasks.layers import make_stackable


@pytest.fixture(autouse=True)
def _on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bias_relu, "DEVICES", {"cpu"})


def model(p: float = 0.3) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(3, 5), nn.ReLU(), nn.Dropout(p), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2)
    return make_stackable(nn.Sequential(*layers)).train().double()


def stack() -> tuple[Tensor, Tensor]:
    """Inputs of three clients, and a key for each."""
    g = torch.Generator().manual_seed(0)
    return torch.randn(3, 4, 2, 3, generator=g).double(), torch.randint(0, 2**32, (3, 2), generator=g)


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {k: torch.stack([v.detach() * f for f in (1.0, 0.5, -1.0)]) for k, v in net.named_parameters()}


def loss(net: nn.Module, params: dict[str, Tensor], x: Tensor, key: Tensor) -> Tensor:
    with forward_pass(torch.ones(len(x)), key):
        out: Tensor = functional_call(net, params, (x,))
    return out.sin().sum()


def per_client(net: nn.Module, order: int) -> dict[str, Tensor]:
    def size(p: dict[str, Tensor], x: Tensor, key: Tensor) -> Tensor:
        slopes = grad(lambda p: loss(net, p, x, key))(p)
        return torch.stack([s.pow(2).sum() for s in slopes.values()]).sum()

    f = size if order == 2 else lambda p, x, key: loss(net, p, x, key)
    with functional():
        return vmap(grad(f))(weights(net), *stack())  # type: ignore[no-any-return]


def per_example(net: nn.Module) -> dict[str, Tensor]:
    def slopes(p: dict[str, Tensor], x: Tensor, key: Tensor) -> dict[str, Tensor]:
        return vmap(lambda row: grad(lambda p: loss(net, p, row[None], key))(p))(x)  # type: ignore[no-any-return]

    with functional():
        return vmap(slopes)(weights(net), *stack())  # type: ignore[no-any-return]


@pytest.mark.parametrize("p", [0.3, 0.0])
@pytest.mark.parametrize("order", [1, 2])
def test_gradients_are_those_of_the_layers_one_by_one(p: float, order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = per_client(model(p), order), per_example(model(p))
    monkeypatch.setattr(bias_relu, "DEVICES", set())
    torch.testing.assert_close(ours, (per_client(model(p), order), per_example(model(p))))


def test_names_stay_and_a_layer_that_is_hooked_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    net, seen, fused = model(), [], []
    assert list(net.state_dict()) == ["0.weight", "0.bias", "3.weight", "3.bias", "5.weight", "5.bias"]
    plain = sequential._linear_relu
    monkeypatch.setattr(sequential, "_linear_relu", lambda layers, x: fused.append(len(layers)) or plain(layers, x))
    x, keys = stack()
    with functional(), forward_pass(torch.ones(4), keys[0]):
        net(x[0])
        assert fused == [3, 2]
        net[1].register_forward_hook(lambda *_: seen.append(True))
        net(x[0])
    assert fused == [3, 2, 2]
    assert seen == [True]
    with forward_pass(torch.ones(4), keys[0]):
        net(x[0])  # outside of an engine
    assert fused == [3, 2, 2]


def test_a_captured_stack_of_fused_layers_learns_what_the_loop_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in (cross_entropy, dropout, layer_norm):
        monkeypatch.setattr(part, "DEVICES", {"cpu"})
    monkeypatch.setattr(stacked, "Captured", partial(Captured, after=1))
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 5, generator=g), torch.randint(0, 3, (60,), generator=g)
    torch.manual_seed(1)
    layers = nn.LayerNorm(5), nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 6), nn.Dropout(0.1)
    net = nn.Sequential(*layers, nn.Linear(6, 3))
    clients = list(torch.arange(60).split([7, 20, 12, 21]))
    loop, stack = (
        atoll.simulate(
            net, (x, y), clients=clients, algorithm={"name": "fedavg", "lr": 0.1}, rounds=3, batch=5, engine=engine
        )
        for engine in ("loop", "vector")
    )
    assert max(float((stack.params[k] - v).abs().max()) for k, v in loop.params.items()) < 1e-5
