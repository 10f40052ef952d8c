"""How many threads a kernel uses on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Inside, kernels use so many; None: as many as before.

    Tensors of a few thousand numbers are computed sooner by one thread than by several that wait for each other, and
    much sooner where other processes want the same cores.
    """
    before = torch.get_num_threads()
    if count in (None, before):
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
