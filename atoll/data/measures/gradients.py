"""Gradient dissimilarity: do the clients pull the model the same way?"""

import torch
from torch import Tensor


def gradient_dissimilarity(gradients: Tensor, weights: Tensor | None = None) -> float:
    """How far the clients' gradients (C, P) at one model differ: 1 when all are the same, and no bound above.

    B^2 = sum_c w_c |g_c|^2 / |sum_c w_c g_c|^2.
    `weights` (C,), e.g. the clients' sizes; alike if left out. Infinite where the gradients cancel. Li et al. (FedProx,
    2020), https://arxiv.org/abs/1812.06127, definition 3.

    >>> gradient_dissimilarity(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    2.0
    """
    g = gradients.double()
    w = torch.ones(len(g), dtype=torch.float64) if weights is None else weights.double()
    w = w / w.sum()
    own, together = float(w @ g.square().sum(1)), float((w @ g).square().sum())
    if own == 0:
        return 1.0  # nobody pulls
    return own / together if together > 0 else float("inf")
