"""A frame with columns of numbers and of categories, as a program hands it over."""

from typing import Any

import numpy as np

from atoll.data.formats.new_rows import as_texts
from atoll.data.formats.preprocessing import Category, Number, Preprocessing


def fitted_table(frame: Any) -> Preprocessing:
    """Numbers as they are, everything else one-hot by the categories that it has here, all in the frame's order."""
    names = [str(name) for name in frame.columns]
    values = {str(name): np.asarray(frame[name]) for name in frame.columns}
    numbers = tuple(Number(name) for name in names if values[name].dtype.kind in "biuf")
    texts = [name for name in names if values[name].dtype.kind not in "biuf"]
    return Preprocessing(numbers, tuple(Category(n, _categories(values[n])) for n in texts), "", order=tuple(names))


def _categories(values: Any) -> tuple[str, ...]:
    return tuple(sorted({text for text in as_texts(values) if text is not None}))
