"""Data in which there is nothing to learn: what a model gets right on it, it has learnt by heart."""

import numpy as np

from atoll.data import Dataset


def random_labels(
    examples: int = 240, classes: int = 4, width: int = 64, kind: str = "classes", test: bool = True
) -> Dataset:
    """Normal inputs and labels that do not depend on them; the test data is drawn alike."""
    draw = np.random.default_rng(7)
    x = draw.normal(size=(2 * examples, width)).astype(np.float32)
    y = draw.integers(0, classes, 2 * examples) if kind == "classes" else draw.normal(size=2 * examples)
    if kind == "tokens":
        x, y = draw.integers(0, 8, (2, 2 * examples, 6))
    held = (x[examples:], y[examples:]) if test else None
    return Dataset.from_arrays(x[:examples], y[:examples], held)
