"""Data that come with scikit-learn, read from its folder: to import it takes a second, most of it for scipy.stats."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from atoll import rng, tree
from atoll.data.dataset import Dataset
from atoll.data.decode import Pixels
from atoll.data.sources.splits import standardise, stratified
from atoll.errors import DataError


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


def bundled(name: str, delimiter: str | None = None, skip: int = 0) -> NDArray[np.float64]:
    """The numbers of one of its files, but for the first `skip` lines."""
    package = find_spec("sklearn")
    folders = package.submodule_search_locations if package else None
    paths = [Path(folder) / "datasets" / "data" / name for folder in folders or ()]
    there = [path for path in paths if path.is_file()]
    if not there:
        where = f"there is no {paths[0]}" if paths else "it is not installed"
        raise DataError(f"scikit-learn: {where}. Install it again: pip install --force-reinstall scikit-learn")
    return np.loadtxt(there[0], np.float64, delimiter=delimiter, skiprows=skip, encoding="utf-8")
