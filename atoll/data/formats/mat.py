"""MATLAB's .mat files, version 5: named arrays."""

import warnings
from pathlib import Path
from typing import Any

from atoll.data.formats import safe_read


def read_mat(path: Path, name: str) -> dict[str, Any]:
    """The arrays of a file that must have one called `name`."""
    from scipy.io import loadmat  # here, so that atoll starts without it
    from scipy.io.matlab import MatReadError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # arrays that we do not need may be odd
            arrays: dict[str, Any] = loadmat(path)
    except NotImplementedError:
        safe_read.refuse(path, "is a .mat file of version 7.3", "Save it in MATLAB with -v7")
    except MemoryError:
        safe_read.refuse(path, "claims sizes that do not fit in memory", "Fetch it again")
    except (MatReadError, OSError, ValueError, TypeError, KeyError, IndexError, EOFError, OverflowError) as e:
        safe_read.refuse(path, f"is no .mat file, or damaged ({e})", "Fetch it again")
    except Exception as e:  # zlib.error and what a broken file makes of scipy's reader
        safe_read.refuse(path, f"is damaged ({type(e).__name__}: {e})", "Fetch it again")
    if name not in arrays:
        there = [k for k in arrays if not k.startswith("__")]
        safe_read.refuse(
            path, f"has no {name!r}. It has {safe_read.list_names(there) or 'nothing'}", "Use the original file"
        )
    return arrays
