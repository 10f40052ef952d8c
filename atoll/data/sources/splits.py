"""Splits and scales shared by the sources."""

import numpy as np
import torch
from torch import Tensor

from atoll.rng import host


def stratified(labels: Tensor, share: float, key: Tensor) -> tuple[Tensor, Tensor]:
    """Rows for training and for testing, `share` of every class held out; both in rising order."""
    classes = labels.numpy()
    sizes = np.bincount(classes)
    by_class = np.argsort(classes, kind="stable")
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    shuffled = by_class[host.order(key[None], np.arange(len(sizes)), sizes)[0] + starts]
    held = np.arange(len(classes)) - starts < np.repeat(np.rint(share * sizes), sizes)
    return torch.from_numpy(np.sort(shuffled[~held])), torch.from_numpy(np.sort(shuffled[held]))


def standardise(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Both with the mean and the standard deviation of the training rows, as float32."""
    mean, std = train.double().mean(0), train.double().std(0, correction=0)
    std = torch.where(std > 0, std, torch.ones_like(std))
    return ((train.double() - mean) / std).float(), ((test.double() - mean) / std).float()
