"""MATLAB's .mat files, version 5: named arrays."""

import warnings
from pathlib import Path
from typing import Any

from atoll.data.formats import safe_read as files


def read_mat(path: Path, name: str) -> dict[str, Any]:
    """The arrays of a file that must have one called `name`."""
    from scipy.io import loadmat  # here, so that atoll starts without it
    from scipy.io.matlab import MatReadError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # arrays that we do not need may be odd
            found: dict[str, Any] = loadmat(path)
    except NotImplementedError:
        files.refuse(path, "is a .mat file of version 7.3", "Save it in MATLAB with -v7")
    except MemoryError:
        files.refuse(path, "claims sizes that do not fit in memory", "Fetch it again")
    except (MatReadError, OSError, ValueError, TypeError, KeyError, IndexError, EOFError, OverflowError) as e:
        files.refuse(path, f"is no .mat file, or damaged ({e})", "Fetch it again")
    except Exception as e:  # zlib.error and what a broken file makes of scipy's reader
        files.refuse(path, f"is damaged ({type(e).__name__}: {e})", "Fetch it again")
    if name not in found:
        there = [k for k in found if not k.startswith("__")]
        files.refuse(path, f"has no {name!r}. It has {files.some(there) or 'nothing'}", "Use the original file")
    return found
