"""Every defence once more, in NumPy: slow, a client and a coordinate at a time, as its paper has it."""

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

Floats = NDArray[np.float64]


def median(x: Floats) -> Floats:
    return np.median(x, axis=0)


def trimmed_mean(x: Floats, share: float) -> Floats:
    cut = int(share * len(x))
    return np.array([np.mean(sorted(column)[cut : len(x) - cut]) for column in x.T])


def meamed(x: Floats, byzantine: int) -> Floats:
    out = []
    for column in x.T:
        middle = np.median(column)
        nearest = sorted(column, key=lambda value: abs(value - middle))
        out.append(np.mean(nearest[: len(x) - byzantine]))
    return np.array(out)


def _krum_scores(x: Floats, byzantine: int) -> list[float]:
    scores = []
    for i in range(len(x)):
        others = sorted(float(np.sum((x[i] - x[j]) ** 2)) for j in range(len(x)) if j != i)
        scores.append(sum(others[: max(1, len(x) - byzantine - 2)]))
    return scores


def krum(x: Floats, byzantine: int) -> Floats:
    return x[int(np.argmin(_krum_scores(x, byzantine)))]


def multi_krum(x: Floats, byzantine: int, keep: int | None = None) -> Floats:
    order = np.argsort(_krum_scores(x, byzantine), kind="stable")
    return x[order[: keep or len(x) - byzantine]].mean(0)


def bulyan(x: Floats, byzantine: int) -> Floats:
    left, chosen = list(range(len(x))), []
    while len(chosen) < len(x) - 2 * byzantine:
        best = left[int(np.argmin(_krum_scores(x[left], byzantine)))] if len(left) > 1 else left[0]
        chosen.append(best)
        left.remove(best)
    return meamed(x[chosen], 2 * byzantine)


def geometric_median(x: Floats, steps: int, smoothing: float = 1e-6) -> Floats:
    z = x.mean(0)
    for _ in range(steps):
        weights = [1 / max(smoothing, float(np.linalg.norm(row - z))) for row in x]
        z = sum(w * row for w, row in zip(weights, x, strict=True)) / sum(weights)
    return z


def true_geometric_median(x: Floats) -> Floats:
    return minimize(lambda z: np.linalg.norm(x - z, axis=1).sum(), x.mean(0), method="BFGS").x


def mda(x: Floats, byzantine: int) -> Floats:
    def diameter(members: tuple[int, ...]) -> float:
        return max(float(np.linalg.norm(x[i] - x[j])) for i in members for j in members)

    best = min(itertools.combinations(range(len(x)), len(x) - byzantine), key=diameter)
    return x[list(best)].mean(0)


def caf(x: Floats, byzantine: int) -> Floats:
    c, best, least = np.ones(len(x)), x.mean(0), math.inf
    while c.sum() > len(x) - 2 * byzantine:
        mean = (c[:, None] * x).sum(0) / c.sum()
        away = x - mean
        values, vectors = np.linalg.eigh((c[:, None] * away).T @ away / c.sum())
        if values[-1] < least:
            least, best = values[-1], mean
        along = (away @ vectors[:, -1]) ** 2
        c = c * np.maximum(0, 1 - along / along[c > 0].max())
    return best


def dnc(x: Floats, byzantine: int, iterations: int = 1) -> Floats:
    """With all columns every iteration is the same."""
    away = x - x.mean(0)
    along = (away @ np.linalg.svd(away)[2][0]) ** 2
    return x[np.argsort(along, kind="stable")[: len(x) - byzantine]].mean(0)


def norm_clipping(x: Floats, max_norm: float) -> Floats:
    return np.mean([row * min(1, max_norm / np.linalg.norm(row)) for row in x], axis=0)


def centred_clipping(x: Floats, radius: float, steps: int, centre: Floats | None = None) -> Floats:
    v = np.zeros(x.shape[1]) if centre is None else centre
    for _ in range(steps):
        v = v + np.mean([(row - v) * min(1, radius / np.linalg.norm(row - v)) for row in x], axis=0)
    return v


def arc(x: Floats, byzantine: int) -> Floats:
    """The updates that it hands on."""
    n = len(x)
    clipped = int(2 * byzantine / n * (n - byzantine))
    bound = sorted(np.linalg.norm(row) for row in x)[n - clipped - 1]
    return np.array([row * min(1, bound / np.linalg.norm(row)) for row in x])


def nnm(x: Floats, byzantine: int) -> Floats:
    """The updates that it hands on."""
    mixed = []
    for row in x:
        nearest = sorted(range(len(x)), key=lambda j: float(np.linalg.norm(row - x[j])))
        mixed.append(x[nearest[: len(x) - byzantine]].mean(0))
    return np.array(mixed)


def robust_lr(x: Floats, threshold: float) -> Floats:
    out = []
    for column in x.T:
        agreed = abs(sum(np.sign(value) for value in column)) >= threshold * len(x)
        out.append(np.mean(column) if agreed else -np.mean(column))
    return np.array(out)


def three_sigma(x: Floats, sigmas: float) -> Floats:
    away = np.linalg.norm(x - geometric_median(x, 1000), axis=1)
    return x[away <= away.mean() + sigmas * away.std()].mean(0)


def fltrust(x: Floats, root: Floats) -> Floats:
    total, trust = np.zeros(x.shape[1]), 0.0
    for row in x:
        cosine = float(row @ root) / float(np.linalg.norm(row) * np.linalg.norm(root))
        if cosine > 0:
            total = total + cosine * np.linalg.norm(root) / np.linalg.norm(row) * row
            trust += cosine
    return total / trust if trust else total


def zeno(x: Floats, root: Floats, byzantine: int, lr: float, rho: float) -> Floats:
    scores = [lr * float(root @ row) - rho * float(row @ row) for row in x]
    return x[np.argsort([-s for s in scores], kind="stable")[: len(x) - byzantine]].mean(0)


def foolsgold(x: Floats, history: Floats) -> Floats:
    n = len(x)
    cosine = np.array([[h @ g / np.linalg.norm(h) / np.linalg.norm(g) for g in history] for h in history]) - np.eye(n)
    highest = np.array([max(cosine[i][j] for j in range(n) if j != i) for i in range(n)])
    trust = []
    for i in range(n):
        pardoned = [
            cosine[i][j] * (highest[i] / highest[j] if highest[j] > max(0.0, highest[i]) else 1.0)
            for j in range(n)
            if j != i
        ]
        trust.append(min(1.0, max(0.0, 1 - max(pardoned))))
    trust = [min(0.99, t / max(trust)) for t in trust]
    logits = [min(1.0, max(0.0, (math.log(t / (1 - t)) if t > 0 else -math.inf) + 0.5)) for t in trust]
    return sum(w * row for w, row in zip(logits, x, strict=True)) / sum(logits)


def residual_reweighting(x: Floats, confidence: float, threshold: float) -> Floats:
    n, d = x.shape
    believed, used = np.zeros(n), np.zeros((n, d))
    for k in range(d):
        order = np.argsort(x[:, k], kind="stable")
        y = x[order, k]
        slope = np.median([np.median([(y[j] - y[i]) / (j - i) for j in range(n) if j != i]) for i in range(n)])
        line = np.array([np.median(y) + slope * (r - (n - 1) / 2) for r in range(n)])
        residual = y - line
        scale = 1.4826 * (1 + 5 / (n - 1)) * np.median(sorted(abs(residual))[1:]) + 1e-7
        design = np.stack([np.ones(n), np.arange(n)], 1)
        leverage = np.diag(design @ np.linalg.inv(design.T @ design) @ design.T)
        bound = confidence * math.sqrt(2 / n)
        weights = np.array(
            [_huber(e, math.sqrt(1 - h), bound) for e, h in zip(residual / scale, leverage, strict=True)]
        )
        for r, client in enumerate(order):
            used[client, k] = y[r] if weights[r] >= threshold else line[r]
            believed[client] += weights[r] * weights.std(ddof=1)
    share = (believed / believed.max()) ** 2
    return (share[:, None] * used).sum(0) / share.sum()


def _huber(e: float, free: float, bound: float) -> float:
    return 1.0 if e == 0 else free / e * max(-bound, min(bound, e / free))


def clipped_clustering(x: Floats) -> Floats:
    """Two clusters by average linkage, step by step; clipped to the median length."""
    bound = np.median(np.linalg.norm(x, axis=1))
    clusters = [[i] for i in range(len(x))]

    def apart(a: list[int], b: list[int]) -> float:
        return float(np.mean([1 - x[i] @ x[j] / np.linalg.norm(x[i]) / np.linalg.norm(x[j]) for i in a for j in b]))

    while len(clusters) > 2:
        a, b = min(itertools.combinations(clusters, 2), key=lambda pair: apart(*pair))
        clusters = [c for c in clusters if c not in (a, b)] + [a + b]
    return norm_clipping(x[sorted(max(clusters, key=len))], float(bound))


def certified_radius(
    lower: float, upper: float, sigma: float, bounds: list[float], rates: list[float], lipschitz: float
) -> Any:
    """CRFL's radius, with the normal distribution by integration."""
    grid = np.linspace(-40, 0, 400_001)
    below_0 = np.trapezoid(np.exp(-(grid**2) / 2), grid) / math.sqrt(2 * math.pi)
    product = 1.0
    for ratio in bounds:
        inner = np.linspace(0, ratio, 200_001)
        product *= 2 * (below_0 + np.trapezoid(np.exp(-(inner**2) / 2), inner) / math.sqrt(2 * math.pi)) - 1
    gap = -math.log(1 - (math.sqrt(lower) - math.sqrt(upper)) ** 2)
    strength = len(rates) * sum(rate**2 for rate in rates)
    return math.sqrt(gap * sigma**2 / (2 * lipschitz**2 * strength * product))
