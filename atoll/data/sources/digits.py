"""The small images of scikit-learn."""

import torch

from atoll import rng, tree
from atoll.data.dataset import Dataset
from atoll.data.decode import Pixels
from atoll.data.sources.bundled import bundled
from atoll.data.sources.splits import stratified


def digits() -> Dataset:
    """1,797 handwritten digits of 8 x 8 pixels in 10 classes, from scikit-learn.

    The split (80/20 in every class) is fixed: it does not follow the seed of an experiment.
    """
    rows = torch.from_numpy(bundled("digits.csv.gz", ","))
    x, y = rows[:, :-1].to(torch.uint8).reshape(-1, 1, 8, 8), rows[:, -1].long()
    train, test = stratified(y, 0.2, rng.key("digits", "split"))
    columns = {"x": x, "y": y}
    parts = tree.rows(columns, train), tree.rows(columns, test)
    return Dataset("digits", "classification", *parts, (1, 8, 8), 10, Pixels(1.0 / 16.0)).check()
