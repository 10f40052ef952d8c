"""The patients of scikit-learn."""

import torch

from atoll import rng
from atoll.data.dataset import Dataset
from atoll.data.sources.bundled import bundled
from atoll.data.sources.splits import standardise, stratified


def diabetes() -> Dataset:
    """442 patients, the progress of diabetes after a year by 10 measurements, from scikit-learn.

    Columns and target are standardised with training statistics; the split (80/20) is fixed.
    """
    x = torch.from_numpy(bundled("diabetes_data_raw.csv.gz"))
    y = torch.from_numpy(bundled("diabetes_target.csv.gz"))[:, None]
    train, test = stratified(torch.zeros(len(y), dtype=torch.int64), 0.2, rng.key("diabetes", "split"))
    inside, outside = standardise(x[train], x[test])
    near, far = standardise(y[train], y[test])
    parts = {"x": inside, "y": near}, {"x": outside, "y": far}
    return Dataset("diabetes", "regression", *parts, (10,), 1, fitted="means and deviations").check()
