"""Measures of a table of counts (N, K): how many rows of class k client c holds. Clients without rows do not count.

With p_c the label distribution of client c, n_c its size, q the distribution of all clients together:

>>> alike, apart = np.array([[1, 1], [2, 2]]), np.array([[2, 0], [0, 2]])
>>> total_variation(alike), emd(alike), jensen_shannon(alike), effective_classes(alike)
(0.0, 0.0, 0.0, 2.0)
>>> total_variation(apart), emd(apart), round(jensen_shannon(apart), 4), effective_classes(apart)
(0.5, 1.0, 0.3113, 1.0)
"""

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


def total_variation(counts: Counts) -> float:
    """The mean over clients of |p_c - q|_1 / 2, every client alike: 0..1."""
    p, q, _ = _shares(counts)
    return float(np.abs(p - q).sum(1).mean() / 2)


def emd(counts: Counts) -> float:
    """The sum over clients of (n_c / n) |p_c - q|_1, every example alike: 0..2.

    The "earth mover's distance" of Zhao et al. (2018), https://arxiv.org/abs/1806.00582.
    """
    p, q, weights = _shares(counts)
    return float((weights * np.abs(p - q).sum(1)).sum())


def jensen_shannon(counts: Counts) -> float:
    """The mean over clients of H((p_c + q) / 2) - (H(p_c) + H(q)) / 2 in bits: 0..1."""
    p, q, _ = _shares(counts)
    apart = _entropy((p + q) / 2) - (_entropy(p) + _entropy(q[None])) / 2
    return float(np.maximum(apart, 0.0).mean())


def label_entropy(counts: Counts) -> float:
    """The mean over clients of H(p_c) in bits: 0 for one class each, log2 K for all classes evenly."""
    return float(_entropy(_shares(counts)[0]).mean())


def effective_classes(counts: Counts) -> float:
    """The mean over clients of 2^H(p_c): as many classes, held evenly, would have that entropy. 1..K."""
    return float(np.exp2(_entropy(_shares(counts)[0])).mean())


def _shares(counts: Counts) -> tuple[Floats, Floats, Floats]:
    """p (N, K), q (K,) and the clients' shares of the examples (N,)."""
    held = counts[counts.sum(1) > 0].astype(np.float64)
    sizes = held.sum(1)
    return held / sizes[:, None], held.sum(0) / sizes.sum(), sizes / sizes.sum()


def _entropy(p: Floats) -> Floats:
    """In bits, along the last axis; 0 log 0 = 0."""
    return np.asarray(-(p * np.log2(np.where(p > 0, p, 1.0))).sum(-1))
