"""The tumours of scikit-learn."""

import torch

from atoll import rng
from atoll.data.dataset import Dataset
from atoll.data.sources.bundled import bundled
from atoll.data.sources.splits import standardise, stratified


def breast_cancer() -> Dataset:
    """569 tumours, malignant or benign, by 30 measurements, from scikit-learn.

    Columns are standardised with training statistics; the split (80/20 in every class) is fixed.
    """
    rows = torch.from_numpy(bundled("breast_cancer.csv", ",", skip=1))
    x, y = rows[:, :-1], rows[:, -1].long()
    train, test = stratified(y, 0.2, rng.key("breast_cancer", "split"))
    inside, outside = standardise(x[train], x[test])
    parts = {"x": inside, "y": y[train]}, {"x": outside, "y": y[test]}
    return Dataset("breast_cancer", "classification", *parts, (30,), 2, fitted="means and deviations").check()
