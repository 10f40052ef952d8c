"""Tables that come with scikit-learn, read from its folder: to import it takes a second, most of it for scipy.stats."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from atoll.errors import DataError


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
