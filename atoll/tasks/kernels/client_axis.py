"""What custom gradients with a client axis share: `vmap` rules that put the axis in front and call the same again.

An operator takes any number of leading axes (`lead` of them), one for every vmap around it; at the bottom it sees plain
tensors, so whoever differentiates outside of vmap finds the same gradient as whoever does inside.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from atoll.core import is_functional
from atoll.tasks.kernels import operators


def fused(x: Tensor, devices: set[str]) -> bool:
    """Do an engine's tensors like this one go through one operator? On a CPU only where a test names it."""
    if not is_functional() or x.device.type not in devices:
        return False
    return x.device.type == "cpu" or operators.usable(x)


def apply(f: type[torch.autograd.Function], *args: Any) -> Any:
    return f.apply(*args)  # type: ignore[no-untyped-call]


def in_front(x: Tensor, dim: int | None, n: int) -> Tensor:
    """The axis that vmap hides in front; the same for all where there is none."""
    if dim is None:
        return x.expand(n, *x.shape)
    return x if dim == 0 else x.movedim(dim, 0)


def stacked(x: Tensor, lead: int) -> Tensor:
    """All leading axes as one, which is there also where there are none."""
    if lead == 1:
        return x
    return x[None] if lead == 0 else x.flatten(0, lead - 1)
