"""How exactly numbers are multiplied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["float32", "tf32", "bfloat16"]


@contextmanager
def arithmetic(device: torch.device, precision: Precision) -> Iterator[None]:
    """Inside, a GPU multiplies matrices with 10 bits of mantissa ("tf32", summed in float32) or with all 23.

    "bfloat16" concerns the task, which casts its weights and inputs: what is not cast is multiplied as in "tf32".
    """
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
