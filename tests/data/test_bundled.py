"""Tables of scikit-learn, read without it."""

from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits

import atoll.data.sources.bundled as room
from atoll.data.sources.bundled import bundled
from atoll.errors import DataError


def test_the_numbers_are_those_of_scikit_learn() -> None:
    for table, (values, targets) in (
        (bundled("digits.csv.gz", ","), load_digits(return_X_y=True)),
        (bundled("breast_cancer.csv", ",", skip=1), load_breast_cancer(return_X_y=True)),
        (np.column_stack(_diabetes()), load_diabetes(return_X_y=True, scaled=False)),
    ):
        assert np.array_equal(table, np.column_stack([values, targets]))


def _diabetes() -> list[np.ndarray]:
    return [bundled(f"diabetes_{name}.csv.gz") for name in ("data_raw", "target")]


def test_what_is_not_there_is_refused_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ModuleSpec("sklearn", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    for found, words in ((spec, f"there is no {tmp_path}"), (None, "it is not installed")):
        monkeypatch.setattr(room, "find_spec", lambda name, found=found: found)
        with pytest.raises(DataError, match=f"scikit-learn: {words}.*pip install"):
            bundled("digits.csv.gz", ",")
