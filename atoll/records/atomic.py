"""Files that are never half-written, and values that are strict JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a draft beside the file, then put it in its place: there is the old one or the new, whole.

    Also after a crash, and after the power failed: what is named is on the disk, and then so is its name.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        write(draft)
        sync_file(draft)
        draft.replace(path)
        _sync_folder(path.parent)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def sync_file(path: Path) -> None:
    """See the file's contents on the disk."""
    with path.open("rb") as f:
        os.fsync(f.fileno())


def _sync_folder(path: Path) -> None:
    """See the names of its files on the disk, where the system can do that (Windows cannot)."""
    with suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def replace_bytes(path: Path, content: bytes) -> None:
    """The same for bytes that are at hand."""
    replace_file(path, lambda draft: draft.write_bytes(content))


def replace_text(path: Path, text: str) -> None:
    """The same for text, in UTF-8."""
    replace_bytes(path, text.encode())


def is_draft(path: Path) -> bool:
    """Was it left behind by a process that died while it wrote?"""
    return path.name.startswith(".") and path.name.endswith(".draft")


def as_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON of anything that holds numbers, texts, arrays and tensors."""
    return json.dumps(clean(value), indent=indent, allow_nan=False)


def clean(value: Any) -> Any:
    """The value with nothing in it that strict JSON does not have: NaN is None, arrays are lists."""
    if isinstance(value, Mapping):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [clean(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str | int | bool) or value is None:
        return value
    return clean(value.item()) if getattr(value, "ndim", 1) == 0 else clean(value.tolist())
