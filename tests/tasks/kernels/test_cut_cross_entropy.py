"""Cross-entropy of scores that are never written is cross-entropy, and so are its gradients, of any order."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from atoll import rng, tree
from atoll.core import functional, gradient_and_value
from atoll.engines.capture import Captured
from atoll.tasks import Supervised, adapted
from atoll.tasks.kernels import LinearScores
from atoll.tasks.kernels import cut_cross_entropy as kernel
from atoll.tasks.kernels.cut_cross_entropy import scores_cross_entropy
from atoll.tasks.models.transformer import TransformerLM
from atoll.tasks.objectives import NextToken
from atoll.tree import Tree
from tests.support.interpreter import interpreted, needs_triton

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
T, V, CLIENTS, TEXTS = 5, 11, 3, 4


@pytest.fixture(autouse=True)
def _on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "DEVICES", {"cpu"})
    monkeypatch.setattr(kernel, "MANY", 2)
    monkeypatch.setattr(kernel, "precision", lambda: "tf32")


def stack(*rows: int, width: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x, w = (torch.randn(*lead, width, generator=g, dtype=torch.float64) for lead in (rows, (rows[0], V)))
    return x, w, torch.randint(0, V, rows, generator=g)


def cut(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return scores_cross_entropy(LinearScores(x, w), y)


def plain(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return -F.log_softmax(F.linear(x, w), -1).gather(-1, y[..., None]).squeeze(-1)


# --------------------------------------------------------------------------------------------------- losses, gradients


@pytest.mark.parametrize("rows", [(3, 4), (2, 3, 5), (1, 1)])
@pytest.mark.parametrize("order", [1, 2])
def test_losses_and_gradients_are_those_of_a_linear_layer(rows: tuple[int, ...], order: int) -> None:
    given = stack(*rows)

    def slopes(f: Loss) -> tuple[Tensor, ...]:
        def loss(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
            return f(x, w, y).pow(2).sum()

        def size(*given: Tensor) -> Tensor:
            return torch.stack([s.pow(2).sum() for s in grad(loss, argnums=(0, 1))(*given)]).sum()

        return vmap(f)(*given), *vmap(grad(loss if order == 1 else size, argnums=(0, 1)))(*given)

    with functional():
        ours = slopes(cut)
    torch.testing.assert_close(ours, slopes(plain))


def test_every_example_within_a_client_has_a_gradient_of_its_own() -> None:
    x, w, y = stack(3, 4, 5)

    def per_example(f: Loss) -> tuple[Tensor, ...]:
        def loss(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
            return f(x[None], w, y[None]).sin().sum()

        return vmap(vmap(grad(loss, argnums=(0, 1)), in_dims=(0, None, 0)))(x, w, y)  # type: ignore[no-any-return]

    with functional():
        torch.testing.assert_close(per_example(cut), per_example(plain))


def test_a_gradient_outside_of_vmap_sees_through_it() -> None:
    x, w, y = stack(3, 4)
    found = []
    for f in (cut, plain):
        start = x.clone().requires_grad_()
        with functional():
            slope = vmap(grad(lambda x, w, y, f=f: f(x, w, y).sum()))(start, w, y)
        found.append(torch.autograd.grad(slope.pow(2).sum(), start)[0])
    torch.testing.assert_close(*found)


# --------------------------------------------------------------------------------------------------------------- tasks


def language_task(tied: bool = True, model: nn.Module | None = None) -> tuple[Supervised, Tree]:
    """A task, and batches of clients: some texts are padding, and so are the ends of some."""
    torch.manual_seed(0)
    if model is None:
        model = TransformerLM((T,), V, width=8, heads=2, layers=1, feedforward=12, dropout=0.3, tied=tied)
    tokens, real = torch.randint(0, V, (CLIENTS, TEXTS, T + 1)), torch.randint(1, T + 1, (CLIENTS, TEXTS, 1))
    batches = {
        "x": tokens[..., :-1],
        "y": torch.where(torch.arange(T) < real, tokens[..., 1:], -100),
        "mask": (torch.arange(TEXTS) < torch.tensor([[4], [2], [0]])).float(),
        "key": torch.stack([rng.key(i) for i in range(CLIENTS)]),
    }
    return Supervised(model, NextToken(V), {k: v[0] for k, v in batches.items()}), batches


def descent(task: Supervised) -> Callable[[Tree, Tree], Tree]:
    """A step of every client."""

    def one(params: Tree, batch: Tree) -> Tree:
        slopes, (loss, _) = gradient_and_value(lambda p: task.loss(p, {}, batch), params)
        return {"loss": loss, "params": tree.map(lambda p, g: p - 0.5 * g, params, slopes)}

    return vmap(one)


def stacked_params(task: Supervised) -> Tree:
    start = task.init(rng.key(0))["params"]
    return tree.map(lambda p: torch.stack([p, 2 * p, -3 * p]), start)


@pytest.fixture
def losses_cut(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes of what losses are taken of without scores."""
    shapes, taken = [], kernel._CutCrossEntropy.forward

    def forward(x: Tensor, *rest: object) -> tuple[Tensor, ...]:
        shapes.append(x.shape)
        return taken(x, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(kernel._CutCrossEntropy, "forward", staticmethod(forward))
    return shapes


@pytest.mark.parametrize("tied", [True, False])
def test_a_transformer_learns_what_it_learns_from_written_scores(
    tied: bool, losses_cut: list[torch.Size], monkeypatch: pytest.MonkeyPatch
) -> None:
    task, batches = language_task(tied)
    params = stacked_params(task)
    with functional():
        ours = descent(task)(params, batches)
        assert losses_cut == [(CLIENTS, TEXTS * T, 8)]
        recorded = Captured(lambda p, b: descent(task)(p, b), after=0).prepare(params, batches)
        monkeypatch.setattr(kernel, "DEVICES", set())
        theirs = descent(task)(params, batches)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(recorded, theirs, rtol=1e-4, atol=1e-6)


def test_one_client_after_another_learns_the_same(losses_cut: list[torch.Size]) -> None:
    task, batches = language_task()
    params = stacked_params(task)
    with functional():
        together = descent(task)(params, batches)
    assert losses_cut.pop()
    for i in range(CLIENTS):
        batch = tree.map(lambda x, i=i: x[i], batches)
        own = tree.map(lambda p, i=i: p[i], params)
        slopes, (loss, _) = gradient_and_value(lambda p, batch=batch: task.loss(p, {}, batch), own)
        alone = {"loss": loss, "params": tree.map(lambda p, g: p - 0.5 * g, own, slopes)}
        torch.testing.assert_close(tree.map(lambda x, i=i: x[i], together), alone, rtol=1e-4, atol=1e-6)
    assert not losses_cut


def test_in_bfloat16_the_loss_is_a_number_of_32_bits(losses_cut: list[torch.Size]) -> None:
    task, batches = language_task()
    with functional():
        exact = descent(task)(stacked_params(task), batches)["loss"]
        task.compute_dtype = torch.bfloat16
        near = descent(task)(stacked_params(task), batches)["loss"]
    assert len(losses_cut) == 2
    assert near.dtype == torch.float32
    torch.testing.assert_close(near, exact, rtol=0.02, atol=0.02)


def test_whoever_asks_for_scores_is_given_scores(losses_cut: list[torch.Size]) -> None:
    task, batches = language_task()
    batch, params = tree.map(lambda x: x[0], batches), task.init(rng.key(0))["params"]
    with functional():
        assert task.logits(params, {}, batch).shape == (TEXTS, T, V)
        assert set(task.measure(params, {}, batch)) == {"weight", "loss", "correct"}
        assert task.losses_with_output_offsets(params, {}, batch, {})[0].shape == (TEXTS,)
        task.loss(params, {}, batch)  # without a gradient
    assert not losses_cut


class Softened(nn.Module):
    """A model around a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = TransformerLM((T,), V, width=8, heads=2, layers=1, feedforward=12)

    def forward(self, tokens: Tensor) -> Tensor:
        return 5 * torch.tanh(self.inner(tokens))


def hooked(part: str) -> nn.Module:
    model = TransformerLM((T,), V, width=8, heads=2, layers=1, feedforward=12, tied=False)
    model.get_submodule(part).register_forward_hook(lambda *given: given[-1] * 2)
    return model


def replaced() -> nn.Module:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model = TransformerLM((T,), V, width=8, heads=2, layers=1, feedforward=12, tied=False)
    model.head = Doubled(8, V, bias=False)
    return model


def frozen() -> nn.Module:
    """Adapters are all that learns."""
    return adapted(TransformerLM((T,), V, width=8, heads=2, layers=1, feedforward=12), 2, 4.0, ["out"])


ELSEWHERE = {
    "inside_another": Softened,
    "hooked": lambda: hooked(""),
    "hooked_head": lambda: hooked("head"),
    "replaced_head": replaced,
    "frozen_weights": frozen,
}


@pytest.mark.parametrize("model", ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_what_is_hooked_wrapped_replaced_or_frozen_goes_the_plain_way(
    model: Callable[[], nn.Module], losses_cut: list[torch.Size]
) -> None:
    task, batches = language_task(model=model())
    with functional():
        found = descent(task)(stacked_params(task), batches)
    assert not losses_cut
    assert found["loss"].isfinite().all()


@pytest.mark.parametrize(("name", "value"), [("MANY", V + 1), ("WIDEST", 7), ("precision", lambda: "ieee")])
def test_few_classes_wide_rows_and_exact_products_go_the_plain_way(
    name: str, value: object, losses_cut: list[torch.Size], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, name, value)
    task, batches = language_task()
    with functional():
        descent(task)(stacked_params(task), batches)
    assert not losses_cut


# ------------------------------------------------------------------------------------------------------------- kernels

SETUP = """
import torch
from torch.func import grad, vmap
from atoll.tasks.kernels import cut_cross_entropy as cut, operators

torch.set_num_threads(1)
torch.manual_seed(0)


def near(ours, theirs, tolerance):
    for a, b in zip(ours, theirs, strict=True):
        error, size = float((a.double() - b).abs().max()), float(b.abs().max())
        assert error <= tolerance * size + 1e-30, (error, size)


def both(x, w, y, g):
    found, lead = [], y.dim() - 1
    for devices, kind in (({"cpu"}, x.dtype), (set(), torch.float64)):
        operators.DEVICES = devices
        given = x.to(kind), w.to(kind), y
        losses, *kept = cut._CutCrossEntropy.forward(*given, lead)
        found.append((losses, *cut._Gradient.forward(g.to(losses.dtype), *given, *kept, lead)))
    return found
"""
SHAPES = """
for kind, tolerance in ((torch.float32, 2e-3), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)):
    for shape, classes, width in (((2, 70), 300, 96), ((1, 5), 130, 8), ((2, 1, 3), 257, 128), ((20,), 256, 72)):
        x, w = torch.randn(*shape, width).to(kind), torch.randn(*shape[:-1], classes, width) / width**0.5
        w[..., 3, :] *= 5
        w[..., 128:200, :] *= 1e-3 if kind != torch.float16 else 1  # tiles have scales of their own
        x *= torch.logspace(-3, 1, shape[-1])[:, None].to(kind)
        y, g = torch.randint(0, classes, shape), torch.randn(shape)
        near(*both(x, w.to(kind), y, g), tolerance)
"""
SURE = """
x = torch.zeros(1, 2, 16)
x[..., 0] = 20.0
w = torch.zeros(1, 140, 16)
w[0, 7, 0], w[0, 130:, 0] = 1.0, 0.01
y, g = torch.full((1, 2), 7), torch.ones(1, 2)
ours, theirs = both(x, w, y, g)  # chances of 1e-9 beside the target's, which rounds to 1
assert 0 < float(theirs[0].max()) < 1e-6
near(ours[1:], theirs[1:], 1e-3)
torch.testing.assert_close(ours[0].double(), theirs[0], rtol=0, atol=2e-7)
near(*both(x, 0 * w, y, g), 1e-3)
near(*(each[1:] for each in both(x, w, y, 0 * g)), 1e-3)
operators.DEVICES = {"cpu"}
losses, slopes, *_ = cut._CutCrossEntropy.forward(x, w, torch.tensor([[7, 140]]), 1)
assert losses.isnan().tolist() == [[False, True]] and slopes[0, 1].isnan().all()
assert cut._CutCrossEntropy.forward(x * float("nan"), w, y, 1)[0].isnan().all()
"""
STACKED = """
from atoll.core import functional

x, w, y = torch.randn(2, 3, 5, 24), torch.randn(2, 150, 24), torch.randint(0, 150, (2, 3, 5))


def slopes(kernels):
    operators.DEVICES = {"cpu"} if kernels else set()

    def loss(x, w, y):
        return cut.scores_cross_entropy(cut.LinearScores(x, w), y).pow(2).sum()

    def size(*given):
        return sum(s.pow(2).sum() for s in grad(loss, argnums=(0, 1))(*given))

    with functional():
        first = vmap(grad(loss, argnums=(0, 1)))(x, w, y)
        rows = vmap(vmap(grad(loss, argnums=(0, 1)), in_dims=(0, None, 0)))(x, w, y)
        return *first, *rows, *vmap(grad(size, argnums=(0, 1)))(x, w, y)


near(slopes(True), slopes(False), 5e-3)
"""


@needs_triton
@pytest.mark.parametrize("program", [SHAPES, SURE, STACKED], ids=["shapes", "sure_predictions", "stacked"])
def test_the_kernels_compute_the_same_under_the_interpreter(program: str) -> None:
    interpreted(SETUP + program)
