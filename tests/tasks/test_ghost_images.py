"""Clipped sums from one backward pass for models with convolutions: against the slow ways, and within their bound."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

from atoll import rng, tree
from atoll.core import functional
from atoll.tasks import Classification, Supervised
from atoll.tasks import per_example_norms as parts
from atoll.tasks.dp_sgd import PrivateTask
from atoll.tasks.ghost import ghost_layers
from atoll.tasks.kernels import batched_conv as products
from atoll.tasks.kernels import convolution, pooling
from atoll.tasks.keyed_dropout import KeyedDropout, forward_pass
from atoll.tasks.models.cnn import CNN
from atoll.tasks.models.lenet import LeNet
from atoll.tasks.models.vgg import VGG9
from atoll.tree import Tree
from tests.tasks.test_dp_sgd import KEY, close, set_up, simulate

Shape = tuple[int, int, int]
ODD: Shape = (2, 9, 8)


def small(*, bias: bool = True, **options: Any) -> nn.Module:
    """A convolution with options on (2, 9, 8), another one, a linear layer."""
    first, then = nn.Conv2d(2, 3, 3, bias=bias, **options), nn.Conv2d(3, 4, (1, 2), bias=bias)
    after = nn.Sequential(nn.Tanh(), then, nn.AvgPool2d(2), nn.Flatten())
    inputs = after(first(torch.zeros(1, *ODD))).shape[1]
    return nn.Sequential(first, after, nn.Linear(inputs, 3, bias=bias))


GOOD: dict[str, tuple[Shape, Callable[[], nn.Module]]] = {
    "lenet": ((1, 16, 16), lambda: LeNet((1, 16, 16), 3)),
    "lenet in colours": ((3, 20, 17), lambda: LeNet((3, 20, 17), 3)),
    "cnn": ((1, 6, 6), lambda: CNN((1, 6, 6), 3, conv_dropout=0.0, dense_dropout=0.0)),
    "cnn with dropout": ((1, 6, 6), lambda: CNN((1, 6, 6), 3)),
    "vgg9": ((1, 8, 8), lambda: VGG9((1, 8, 8), 3, widths=[6, 5])),
    "plain": (ODD, small),
    "stride": (ODD, lambda: small(stride=(2, 1))),
    "padding": (ODD, lambda: small(padding=(1, 2))),
    "dilation": (ODD, lambda: small(dilation=(2, 1))),
    "all of them": (ODD, lambda: small(stride=(1, 2), padding=(2, 1), dilation=(1, 2), bias=False)),
    "same size": (ODD, lambda: small(padding="same")),
    "a convolution alone": ((2, 3, 3), lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten())),
}


def task_of(name: str) -> Supervised:
    shape, make = GOOD[name]
    return made(make, shape)


def made(make: Callable[[], nn.Module], shape: Shape) -> Supervised:
    torch.manual_seed(0)
    return Supervised(make(), Classification(3), batch_of(shape, [1.0, 1.0]))


def batch_of(shape: Shape, mask: list[float], key: Tensor = KEY) -> Tree:
    x = rng.normal(rng.fold(key, 7), (len(mask), *shape))
    return {"x": x, "y": torch.arange(len(mask)) % 3, "mask": torch.tensor(mask, dtype=torch.float32), "key": key}


def ways(task: Supervised, clip: float, **options: Any) -> tuple[PrivateTask, PrivateTask]:
    """The quick one and the slow one."""
    layers = ghost_layers(task)
    assert layers
    slow = PrivateTask(task, clip, 0.5, 5.0, keyed=task.keyed, **options)
    return PrivateTask(task, clip, 0.5, 5.0, keyed=task.keyed, ghost=layers, **options), slow


def stacked(private: PrivateTask, params: Tree, batch: Tree) -> tuple[Tree, Tensor]:
    with functional(), torch.no_grad():
        return private.gradient(params, {}, batch)


def same(a: tuple[Tree, Tensor], b: tuple[Tree, Tensor]) -> bool:
    return list(a[0]) == list(b[0]) and close(a[0], b[0]) and torch.allclose(a[1], b[1], rtol=1e-5)


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("clip", [1e-2, 0.7, 1e6])
def test_one_pass_gives_what_gradients_one_by_one_give(name: str, clip: float) -> None:
    task = task_of(name)
    quick, slow = ways(task, clip)
    params, batch = task.init(KEY)["params"], batch_of(GOOD[name][0], [1, 1, 0, 1])
    found = stacked(quick, params, batch)
    assert same(found, stacked(slow, params, batch))
    with torch.no_grad():
        assert same(found, slow.gradient(params, {}, batch))


def clients(task: Supervised, shape: Shape, mask: list[list[float]]) -> tuple[Tree, Tree]:
    """Models and batches of several clients, stacked."""
    params = task.init(KEY)["params"]
    models = [tree.map(lambda p, s=1 + c / 4: p * s, params) for c in range(len(mask))]
    batches = [batch_of(shape, m, rng.key("client", c)) for c, m in enumerate(mask)]
    return tree.map(lambda *x: torch.stack(x), *models), tree.map(lambda *x: torch.stack(x), *batches)


def of_clients(private: PrivateTask, models: Tree, batches: Tree) -> tuple[Tree, Tensor]:
    with functional(), torch.no_grad():
        return vmap(lambda p, b: private.gradient(p, {}, b))(models, batches)


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("products_of_our_own", [False, True])
def test_so_it_does_for_stacked_clients(name: str, products_of_our_own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(name)
    quick, slow = ways(task, 0.3)
    models, batches = clients(task, GOOD[name][0], [[1, 1, 1], [1, 0, 1], [0, 0, 0]])
    wanted = of_clients(slow, models, batches)
    if products_of_our_own:
        monkeypatch.setattr(convolution, "DEVICES", {"cpu"})
        monkeypatch.setattr(pooling, "DEVICES", {"cpu"})
    assert same(of_clients(quick, models, batches), wanted)


def test_no_gradient_by_the_weights_of_all_examples_is_made_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    made_of: list[str] = []

    def noted(name: str) -> None:
        before = getattr(products, name)
        monkeypatch.setattr(products, name, lambda *a: (made_of.append(name), before(*a))[1])

    for name in ("output", "input_gradient", "weight_gradient"):
        noted(name)
    monkeypatch.setattr(convolution, "DEVICES", {"cpu"})
    task = task_of("lenet")
    of_clients(ways(task, 0.3)[0], *clients(task, (1, 16, 16), [[1.0], [1.0]]))
    assert made_of == ["output", "output", "input_gradient"]


@given(
    image=st.tuples(st.integers(1, 3), st.integers(5, 9), st.integers(5, 9)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    bias=st.booleans(),
    mask=st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=5),
)
def test_so_it_does_for_any_shape(
    image: Shape, kernel: Any, stride: Any, padding: Any, dilation: Any, bias: bool, mask: list[float]
) -> None:
    def make() -> nn.Module:
        layer = nn.Conv2d(image[0], 3, kernel, stride, padding, dilation, bias=bias)
        return nn.Sequential(layer, nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))

    def ready() -> nn.Module:
        module = make()
        module(torch.zeros(1, *image))
        return module

    task = made(ready, image)
    quick, slow = ways(task, 0.3)
    params, batch = task.init(KEY)["params"], batch_of(image, mask)
    assert same(stacked(quick, params, batch), stacked(slow, params, batch))


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_an_example_that_is_no_number_counts_as_nothing(wrong: float) -> None:
    task = task_of("lenet")
    params, batch = task.init(KEY)["params"], batch_of((1, 16, 16), [1, 1, 1])
    batch["x"][1, 0, 3, 3] = wrong
    for private in ways(task, 0.3):
        g, loss = stacked(private, params, batch)
        assert close(g, stacked(private, params, {**batch, "mask": torch.tensor([1.0, 0, 1])})[0])
        assert math.isfinite(float(loss))


def test_a_row_with_a_key_of_its_own_is_drawn_as_a_batch_of_its_own() -> None:
    layer, x = KeyedDropout(0.4, 3, per_channel=False), torch.ones(5, 2, 7)
    keys = torch.stack([rng.fold(KEY, i) for i in range(5)])
    with forward_pass(torch.ones(5), keys):
        found = layer(x)
    for i in range(5):
        with forward_pass(torch.ones(1), keys[i]):
            assert torch.equal(found[i], layer(x[i : i + 1])[0])


class Rounded(TorchDispatchMode):
    """Products of float32 numbers see 10 bits of their mantissas, as in TF32, here rounded away from zero."""

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if f.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm):
            args = tuple(_short(x) if isinstance(x, Tensor) and x.dtype == torch.float32 else x for x in args)
        return f(*args, **(kwargs or {}))


def _short(x: Tensor) -> Tensor:
    up: Tensor = (x.contiguous().view(torch.int32) + 0x1FFF) & ~0x1FFF
    return up.view(torch.float32)


@pytest.mark.parametrize("name", ["lenet", "all of them", "cnn with dropout"])
@pytest.mark.parametrize("careful", [True, False])
def test_no_example_counts_for_more_than_the_clip_where_products_are_rounded(
    name: str, careful: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "is_exact_product", lambda _: not careful)
    task = task_of(name)
    clip, params, lengths = 0.01, task.init(KEY)["params"], []
    private = PrivateTask(task, clip, 0.0, 1.0, keyed=task.keyed, ghost=ghost_layers(task))
    for i in range(8):
        with Rounded():
            g, _ = stacked(private, params, batch_of(GOOD[name][0], [1.0], rng.key("example", i)))
        lengths.append(math.sqrt(sum(float(x.double().square().sum()) for x in g.values())))
    assert max(lengths) >= clip * (1 - 1e-5)  # it was long enough to be clipped
    assert (max(lengths) <= clip) == careful


def turned(**options: Any) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3, **options), nn.Flatten(), nn.LazyLinear(3))


def hooked() -> nn.Module:
    module = small()
    module[0].register_forward_hook(lambda _, __, out: out - out.mean(0))
    return module


@pytest.mark.parametrize(
    "make",
    [lambda: turned(groups=2), lambda: turned(padding=1, padding_mode="reflect"),
     lambda: nn.Sequential(nn.Flatten(1, 2), nn.Conv2d(3, 3, 1), nn.Flatten(), nn.LazyLinear(3)), hooked],
)  # fmt: skip
def test_other_convolutions_are_left_to_gradients_laid_out(make: Callable[[], nn.Module]) -> None:
    module = make()
    module(torch.zeros(3, *ODD))
    task = Supervised(module, Classification(3), batch_of(ODD, [1.0, 1.0, 1.0]))
    assert ghost_layers(task) == ()


def test_images_of_another_size_are_left_to_them_too() -> None:
    task = made(lambda: nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.AvgPool2d(4), nn.Flatten()), (1, 5, 4))
    quick, slow = ways(task, 0.01)
    params, batch = task.init(KEY)["params"], batch_of((1, 7, 6), [1.0, 1.0])
    assert same(stacked(quick, params, batch), stacked(slow, params, batch))


@pytest.mark.slow
def test_a_run_with_dropout_takes_the_quick_way_and_agrees_with_the_loop() -> None:
    torch.manual_seed(0)
    module = CNN((1, 6, 6), 2)
    privacy = set_up(module).example_privacy
    assert privacy is not None
    assert [x.name for x in privacy.task.ghost] == ["conv1", "conv2", "dense", "head"]
    runs = [simulate(e, "poisson", module, max_steps=3) for e in ("loop", {"name": "vector", "chunk": 2}, "threads")]
    for run in runs[1:]:
        assert close(run.params, runs[0].params)
