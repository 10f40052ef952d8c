"""On a GPU a language model whose scores are not written learns what it learns from written ones."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from atoll.core import functional
from atoll.tasks.kernels import LinearScores, scores_cross_entropy, tied_embedding

pytestmark = pytest.mark.gpu
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def cut(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return scores_cross_entropy(LinearScores(x, w), y).mean()


def written(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return -F.log_softmax((x @ w.T).float(), -1).gather(-1, y[:, None]).mean()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "classes", "width"), [(330, 10_004, 96), (330, 5000, 64), (70, 4100, 128), (7, 4100, 40)]
)
def test_losses_and_gradients_of_a_stack(rows: int, classes: int, width: int, kind: torch.dtype) -> None:
    g = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(3, rows, width, generator=g, device="cuda").to(kind)
    w = (torch.randn(3, classes, width, generator=g, device="cuda") / 10).to(kind)
    y = torch.randint(0, classes, (3, rows), generator=g, device="cuda")

    def found(f: Loss, kind: torch.dtype) -> tuple[Tensor, ...]:
        with functional():
            given = x.to(kind), w.to(kind), y
            return vmap(f)(*given), *vmap(grad(f, argnums=(0, 1)))(*given)

    for ours, theirs in zip(found(cut, kind), found(written, torch.float64), strict=True):
        off = (ours.double() - theirs).norm() / theirs.norm()
        assert off < (2e-3 if kind == torch.float32 else 1e-2), (ours.shape, float(off))


def test_gradients_of_a_tied_embedding_are_those_of_torch_and_the_same_bits_every_time() -> None:
    g = torch.Generator("cuda").manual_seed(0)
    tokens = torch.randint(0, 50, (4, 320), generator=g, device="cuda")
    w = torch.randn(4, 5000, 96, generator=g, device="cuda")

    def tied(w: Tensor, tokens: Tensor) -> Tensor:
        rows, last = tied_embedding(tokens, w)
        return (rows @ last[:60].T).sin().sum()

    def plain(w: Tensor, tokens: Tensor) -> Tensor:
        return (F.embedding(tokens, w) @ w[:60].T).sin().sum()

    with functional():
        first, again = (vmap(grad(tied))(w, tokens) for _ in range(2))
        theirs = vmap(grad(plain))(w.double(), tokens)
    assert torch.equal(first, again)
    assert (first.double() - theirs).norm() / theirs.norm() < 1e-4
