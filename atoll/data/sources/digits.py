"""The small images of scikit-learn."""

import torch

from atoll import rng, tree
from atoll.data.dataset import Dataset
from atoll.data.decode import Pixels
from atoll.data.sources.splits import stratified


def digits() -> Dataset:
    """1,797 handwritten digits of 8 x 8 pixels in 10 classes, from scikit-learn.

    The split (80/20 in every class) is fixed: it does not follow the seed of an experiment.
    """
    from sklearn.datasets import load_digits  # here, so that atoll starts without it

    values, targets = load_digits(return_X_y=True)
    x = torch.from_numpy(values).to(torch.uint8).reshape(-1, 1, 8, 8)
    y = torch.from_numpy(targets).long()
    train, test = stratified(y, 0.2, rng.key("digits", "split"))
    columns = {"x": x, "y": y}
    parts = tree.rows(columns, train), tree.rows(columns, test)
    return Dataset("digits", "classification", *parts, (1, 8, 8), 10, Pixels(1.0 / 16.0)).check()
