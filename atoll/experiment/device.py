"""Which device a run is on."""

from __future__ import annotations

from typing import TypeAlias

import torch

from atoll.engines.ranks import launched
from atoll.errors import ConfigError

Device: TypeAlias = str  # "auto", "cpu", "cuda", or one GPU of several: "cuda:1"


def find_device(name: Device) -> torch.device:
    """The device asked for, if it is there."""
    kind, _, number = name.partition(":")
    if name == "mps":
        raise ConfigError(
            "device: 'mps' has not been shown to give the same results as others, so it is not taken. Use 'cpu'."
        )
    if name not in ("auto", "cpu", "cuda") and not (kind == "cuda" and number.isdecimal()):
        raise ConfigError(f"device: must be 'auto', 'cpu', 'cuda' or one GPU such as 'cuda:1' (got {name!r}).")
    there = torch.cuda.is_available()
    if kind == "cuda" and not there:
        raise ConfigError(f"device: {name!r} was asked for, but torch sees no GPU here. Use device = 'cpu' or 'auto'.")
    if number:
        _use_gpu(int(number))
    return torch.device("cuda" if kind == "cuda" or (name == "auto" and there) else "cpu")


def _use_gpu(number: int) -> None:
    """From here on "cuda" is this one."""
    if launched():
        raise ConfigError("device: under torchrun every process has a GPU of its own. Use device = 'cuda' or 'auto'.")
    count = torch.cuda.device_count()
    if number >= count:
        raise ConfigError(f"device: there is no 'cuda:{number}', torch sees {count} GPU(s): 0 to {count - 1}.")
    torch.cuda.set_device(number)
