"""What a run ran on."""

from __future__ import annotations

import os
import platform
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from atoll.engines import total_bytes

_PACKAGES = ("atoll", "torch", "numpy", "scipy", "scikit-learn", "pydantic")


@cache
def code() -> str:
    """A digest of Atoll's own files: runs with the same one were made by the same code, whatever its version says."""
    package = Path(__file__).parent.parent
    hasher = sha256()
    for path in sorted(package.rglob("*.py")):
        hasher.update(f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return hasher.hexdigest()[:12]


def versions() -> dict[str, str]:
    """Python, the code of Atoll, and the packages that results may depend on."""
    return {"python": platform.python_version(), "code": code(), **{name: _version(name) for name in _PACKAGES}}


@cache  # to read one takes as long as a round of a small run
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed as a package"


def hardware(device: torch.device) -> dict[str, Any]:
    """The machine in a few words."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": round(total_bytes(torch.device("cpu")) / 1e9, 1),
        "device": device.type,
        "gpu": gpu,
        "system": f"{platform.system()} {platform.machine()}",
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
