"""How much of the originals there is in what an attacker made: scores of pictures whose numbers run from 0 to 1."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.errors import ConfigError

Floats = NDArray[np.float64]
_BLOCK = 512  # reconstructions whose distances to all candidates are taken at a time
_GAUSSIAN_SIDE = 11  # of pictures from which SSIM's usual window fits
_SAME = 1e-6


@dataclass(frozen=True, eq=False)
class Similarity:
    """Of every original, in the order of groups: which was held against which, and how near it came."""

    group: Floats  # (E,) the number of its group
    place: Floats  # (E,) of the reconstruction that it was held against
    mse: Floats
    l2: Floats
    psnr: Floats
    ssim: Floats | None  # of pictures
    identified: Floats  # 1 where the original is the nearest of all candidates to its reconstruction


def compare(originals: Tensor, found: Tensor, held: Tensor, candidates: Tensor) -> Similarity:
    """Each group's originals (G, N, *inputs) beside its reconstructions, matched so that squared errors are least.

    `held` (G, N): False is padding. `candidates` (P, *inputs) are all that an original is looked for among.
    """
    pairs = _matched(originals, found, held)
    a, b = (x[pairs[:, 0], pairs[:, i]] for x, i in ((originals, 1), (found, 2)))
    error = (a - b).reshape(len(a), -1)
    mse = (error**2).mean(1)
    return Similarity(
        _numbers(pairs[:, 0]),
        _numbers(pairs[:, 2]),
        _numbers(mse),
        _numbers(error.norm(dim=1)),
        _numbers(psnr(mse)),
        _numbers(ssim(a, b)) if a.dim() == 4 else None,
        _numbers(_nearest(a, b, candidates)),
    )


def psnr(mse: Tensor) -> Tensor:
    """10 log10(1 / MSE) in dB, of numbers from 0 to 1; at most 100."""
    return (-10 * torch.log10(mse.clamp(min=1e-10))).clamp(max=100.0)


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """(E,) structural similarity (Wang et al., 2004): the usual Gaussian window of 11; in small pictures a flat one.

    The mean over all pixels, beyond the edges of which pictures are mirrored.
    """
    side = min(a.shape[-2:])
    measure = _torchmetrics().structural_similarity_index_measure
    if side >= _GAUSSIAN_SIDE:
        window: dict[str, Any] = {"gaussian_kernel": True, "sigma": 1.5}
    else:
        window = {"gaussian_kernel": False, "kernel_size": min(7, side - 1 + side % 2)}
    found: Tensor = measure(b.contiguous(), a.contiguous(), reduction="none", data_range=1.0, **window)
    return found.reshape(len(a))


def _torchmetrics() -> Any:
    try:
        return importlib.import_module("torchmetrics.functional.image")
    except ImportError as e:
        raise ConfigError("--method: SSIM needs torchmetrics. Run `pip install 'atoll[attacks]'`.") from e


def _matched(originals: Tensor, found: Tensor, held: Tensor) -> Tensor:
    """(E, 3): group, original, reconstruction."""
    G, N = held.shape
    if N == 1:
        at = torch.arange(G, device=held.device)
        return torch.stack([at, at * 0, at * 0], 1)
    from scipy.optimize import linear_sum_assignment

    costs = (torch.cdist(originals.reshape(G, N, -1), found.reshape(G, N, -1)) ** 2).cpu().numpy()
    rows = []
    for g, real in enumerate(held.cpu().numpy()):
        mine = np.flatnonzero(real)
        original, made = linear_sum_assignment(costs[g][mine])
        rows.append(np.stack([np.full(len(mine), g), mine[original], made], 1))
    return torch.from_numpy(np.concatenate(rows)).to(held.device)


def _nearest(original: Tensor, made: Tensor, candidates: Tensor) -> Tensor:
    """Is no candidate nearer to the reconstruction than its original? (An exact copy of it is as near.)"""
    flat, own = candidates.reshape(len(candidates), -1), (original - made).reshape(len(made), -1).norm(dim=1)
    least = [
        torch.cdist(part.reshape(len(part), -1), flat, compute_mode="donot_use_mm_for_euclid_dist").amin(1)
        for part in made.split(_BLOCK)  # type: ignore[no-untyped-call]
    ]
    hits: Tensor = own <= torch.cat(least) + _SAME
    return hits.double()


def _numbers(x: Tensor) -> Floats:
    found: Floats = x.detach().cpu().double().numpy()
    return found
