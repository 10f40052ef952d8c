import pytest
import torch

from atoll.attacks.leakage.descent import StackedAdam, StackedLbfgs
from atoll.attacks.leakage.recipes import RECIPES

CURVES = torch.tensor([[1.0, 4.0, 9.0], [2.0, 0.5, 30.0]])


def gradient(x: torch.Tensor) -> torch.Tensor:
    """Of two bowls of different shape."""
    return CURVES * (x - 1.0)


@pytest.mark.parametrize("signed", [False, True])
def test_adam_is_torchs_own(signed: bool) -> None:
    ours, step = torch.zeros(2, 3), StackedAdam(signed)
    theirs = torch.zeros(2, 3, requires_grad=True)
    torchs = torch.optim.Adam([theirs], lr=0.1)
    for _ in range(7):
        theirs.grad = gradient(theirs.detach())
        theirs.grad = theirs.grad.sign() if signed else theirs.grad
        torchs.step()
        (ours,) = step((ours,), (gradient(ours),), 0.1)
    torch.testing.assert_close(ours, theirs.detach())


def test_lbfgs_is_torchs_own_for_each_of_a_stack() -> None:
    ours, step = torch.zeros(2, 3), StackedLbfgs()
    theirs = [torch.zeros(3, requires_grad=True) for _ in range(2)]
    for row, x in enumerate(theirs):
        torchs = torch.optim.LBFGS([x], lr=1.0, max_iter=6, history_size=20, tolerance_grad=0, tolerance_change=0)

        def closure(x: torch.Tensor = x, row: int = row, torchs: torch.optim.LBFGS = torchs) -> torch.Tensor:
            torchs.zero_grad()
            loss = (CURVES[row] * (x - 1.0) ** 2).sum() / 2
            loss.backward()
            return loss

        torchs.step(closure)
    for _ in range(6):
        (ours,) = step((ours,), (gradient(ours),), 1.0)
    torch.testing.assert_close(ours, torch.stack([x.detach() for x in theirs]), atol=1e-4, rtol=1e-4)


def test_rates_fall_as_the_recipes_say() -> None:
    dlg, inverting = RECIPES["dlg"], RECIPES["inverting"]
    assert [dlg.rate(step, 1000) for step in (0, 99, 100, 250)] == pytest.approx([0.1, 0.1, 0.098, 0.1 * 0.98**2])
    assert [inverting.rate(step, 80) for step in (0, 29, 30, 50, 70)] == pytest.approx([0.1, 0.1, 1e-2, 1e-3, 1e-4])
