"""How far generated examples are from real ones: a distance of Gaussians, in features that nobody trains."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from atoll import rng

FEATURES = 16


def random_features(x: Tensor, features: int = FEATURES) -> Tensor:
    """relu(W x) of every flattened row, (N, features): W normal, of variance 1 / numbers in a row, always the same.

    No network that was trained on anything, so figures are comparable for inputs of one shape and with nothing else.
    """
    flat = x.flatten(1).double()
    size = flat.shape[1]
    weights = rng.normal(rng.key("frechet", size), (size, features)).to(flat) / math.sqrt(size)
    return (flat @ weights).relu()


def frechet_distance(a: Tensor, b: Tensor) -> Tensor:
    """|m_a - m_b|^2 + tr(C_a + C_b - 2 (C_a C_b)^(1/2)), m and C the means and covariances of two samples' rows.

    The squared 2-Wasserstein distance of Gaussians, as in the FID of Heusel et al. (2017), whose features are others.

    >>> rows = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    >>> round(float(frechet_distance(rows, rows + 3.0)), 6)
    18.0
    """
    (mean_a, cov_a), (mean_b, cov_b) = _moments(a), _moments(b)
    root = _root(cov_a)
    both = torch.linalg.eigvalsh(root @ cov_b @ root).clamp(min=0).sqrt().sum()
    gap = mean_a - mean_b
    distance: Tensor = (gap @ gap + cov_a.trace() + cov_b.trace() - 2 * both).clamp(min=0)
    return distance


def _moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    mean = rows.mean(0)
    off = rows - mean
    return mean, off.T @ off / max(1, len(rows) - 1)


def _root(matrix: Tensor) -> Tensor:
    """The symmetric square root of a covariance."""
    values, vectors = torch.linalg.eigh(matrix)
    root: Tensor = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    return root
