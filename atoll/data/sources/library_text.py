"""Text that is already on the machine."""

from importlib.resources import files
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from atoll.data.dataset import IGNORE, Dataset

Ints = NDArray[np.int64]

UNKNOWN = 0  # the symbol of a character that the training text does not have


def library_text(window: Annotated[int, Field(ge=2)] = 40) -> Dataset:
    """Next characters of the data descriptions inside scikit-learn; natural clients by "document".

    Every document is cut in windows of `window` characters, y = x one character on (-100 behind the end). The last 20 %
    of each document's windows are the test set; the vocabulary is that of the training windows, with symbol 0 for
    anything else. The text follows the installed version of scikit-learn, and so does the digest.
    """
    windows = [_windows(text, window) for text in _documents()]
    held = [max(1, round(0.2 * len(w))) if len(w) > 1 else 0 for w in windows]
    train = np.concatenate([w[: len(w) - h] for w, h in zip(windows, held, strict=True)])
    test = np.concatenate([w[len(w) - h :] for w, h in zip(windows, held, strict=True)])
    document = np.repeat(np.arange(len(windows)), [len(w) - h for w, h in zip(windows, held, strict=True)])
    alphabet = np.unique(train[train >= 0])
    keys = {"document": torch.from_numpy(document)}
    columns = _columns(train, alphabet), _columns(test, alphabet)
    return Dataset(
        "library_text", "next_token", *columns, (window,), len(alphabet) + 1, keys=keys, fitted="alphabet"
    ).check()


def _documents() -> list[str]:
    folder = files("sklearn.datasets.descr")
    names = sorted(f.name for f in folder.iterdir() if f.name.endswith(".rst"))
    return [folder.joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n") for name in names]


def _windows(text: str, window: int) -> Ints:
    """Code points (n, window + 1): a window and the character behind it; -1 behind the end of the text."""
    n = max(1, -(-(len(text) - 1) // window))
    points = np.full(n * window + 1, -1, np.int64)
    points[: len(text)] = [ord(c) for c in text]
    return np.lib.stride_tricks.sliding_window_view(points, window + 1)[::window]


def _columns(points: Ints, alphabet: Ints) -> dict[str, torch.Tensor]:
    place = np.minimum(np.searchsorted(alphabet, points), len(alphabet) - 1)
    symbols = np.where(alphabet[place] == points, place + 1, UNKNOWN)
    x, y = symbols[:, :-1], np.where(points[:, 1:] >= 0, symbols[:, 1:], IGNORE)
    return {"x": torch.from_numpy(x.copy()), "y": torch.from_numpy(y.copy())}
