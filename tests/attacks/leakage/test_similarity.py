import numpy as np
import pytest
import torch

from atoll.attacks.leakage.one_attack import by_group, estimate
from atoll.attacks.leakage.similarity import compare, psnr, ssim


def slow_ssim(a: np.ndarray, b: np.ndarray, window: np.ndarray) -> float:
    """Wang et al. (2004), window by window, around every pixel of a picture that is mirrored at its edges."""
    k = len(window)
    a, b = (np.pad(x, k // 2, mode="reflect") for x in (a, b))
    h, w = a.shape
    c1, c2, found = 0.01**2, 0.03**2, []
    for i in range(h - k + 1):
        for j in range(w - k + 1):
            p, q = a[i : i + k, j : j + k], b[i : i + k, j : j + k]
            mp, mq = (window * p).sum(), (window * q).sum()
            vp, vq = (window * p * p).sum() - mp**2, (window * q * q).sum() - mq**2
            cov = (window * p * q).sum() - mp * mq
            found.append((2 * mp * mq + c1) * (2 * cov + c2) / ((mp**2 + mq**2 + c1) * (vp + vq + c2)))
    return float(np.mean(found))


@pytest.mark.parametrize("side", [8, 20])
def test_ssim_is_that_of_a_slow_oracle(side: int) -> None:
    draw = np.random.default_rng(side)
    a, b = draw.uniform(0, 1, (2, side, side))
    b = 0.6 * a + 0.4 * b
    if side < 11:
        window = np.full((7, 7), 1 / 49)
    else:
        line = np.exp(-((np.arange(11) - 5) ** 2) / (2 * 1.5**2))
        window = np.outer(line, line) / line.sum() ** 2
    found = ssim(torch.tensor(a)[None, None], torch.tensor(b)[None, None])
    assert float(found) == pytest.approx(slow_ssim(a, b, window), abs=1e-4)


def test_psnr_is_in_decibels_of_the_mean_squared_error() -> None:
    a, b = np.random.default_rng(0).uniform(0, 1, (2, 5, 1, 9, 9))
    mse = ((a - b) ** 2).mean((1, 2, 3))
    assert psnr(torch.tensor(mse)).numpy() == pytest.approx(10 * np.log10(1 / mse))
    assert psnr(torch.zeros(1)).tolist() == [100]


def test_an_example_itself_has_every_best_score() -> None:
    x = torch.rand(3, 2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    like = compare(x, x, torch.ones(3, 2, dtype=torch.bool), x.reshape(6, 1, 8, 8))
    assert like.ssim is not None
    assert (like.mse == 0).all()
    assert (like.identified == 1).all()
    assert like.ssim == pytest.approx(1.0)


def test_the_order_of_reconstructions_does_not_matter_and_padding_does_not_count() -> None:
    x = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(1))
    held = torch.tensor([[True, True, True], [True, True, False]])
    like = compare(x, x[:, [2, 0, 1]], held, x.reshape(6, 4))
    assert like.group.tolist() == [0, 0, 0, 1, 1]
    assert like.place.tolist() == [1, 2, 0, 1, 2]
    assert like.l2 == pytest.approx(0.0)
    assert like.ssim is None


def test_who_is_nearer_to_another_is_not_identified() -> None:
    x = torch.tensor([[[0.0]], [[1.0]], [[0.5]]])
    like = compare(x, x + torch.tensor([[[0.1]], [[-0.4]], [[0.2]]]), torch.ones(3, 1, dtype=torch.bool), x[:, 0])
    assert like.identified.tolist() == [1, 0, 1]


def test_scores_are_means_of_groups_with_an_interval() -> None:
    groups = by_group(np.array([1.0, 3.0, 5.0]), np.array([0.0, 0.0, 1.0]))
    assert groups.tolist() == [2, 5]
    assert estimate(groups)["mean"] == 3.5
    assert estimate(groups)["half"] == pytest.approx(12.706 * 1.5, rel=1e-3)
    assert estimate(np.array([2.0])) == {"mean": 2.0, "half": None}
