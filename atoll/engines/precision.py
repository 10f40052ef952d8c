"""How exactly numbers are multiplied."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch

Precision = Literal["float32", "tf32", "bfloat16"]
_FLAGS = re.compile(r"(flags|Features)\s*:")  # as Linux names what a processor has, on x86 and on ARM


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


def processor_has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool | None:
    """Does this computer's processor multiply in bfloat16? Without it torch takes numbers apart, which is slower.

    None where the system does not say.
    """
    try:
        flags = {word for line in cpuinfo.read_text().splitlines() if _FLAGS.match(line) for word in line.split()}
    except OSError:
        return None
    return bool(flags & {"avx512_bf16", "amx_bf16", "bf16"}) if flags else None
