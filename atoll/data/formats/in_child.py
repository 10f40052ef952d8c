"""Readers whose parsers are not safe, each in a child process: what a file makes of it is no harm to this one.

Nothing that comes back is trusted either: arrays as .npy without pickles, and words.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.data.formats import child_reader, safe_read
from atoll.data.memory import gib, machine_memory
from atoll.errors import Accident, DataError

Array = NDArray[Any]
_SLOWEST = 1_000_000  # bytes of a file that are read in a second, at least
_SECONDS, _WAITING = 60, 10  # for a file of any size; times as long as it may compute, for a slow disk
_INSTEAD = "Do not trust this file; fetch it again from where it was published"


def in_child(
    read: Callable[..., Iterator[Array]],
    path: Path,
    memory: int | None = None,
    seconds: int | None = None,
    **options: Any,
) -> Iterator[Array]:
    """The arrays that `read(path, **options)` yields in a child, mapped into memory.

    `read` is a function of a module that imports nothing of atoll but its errors; options fit in JSON. `memory`:
    bytes, by default half of the machine's. `seconds` of computing: by default a minute and one for every megabyte.
    """
    memory = memory or machine_memory() // 2
    seconds = seconds or _SECONDS + path.stat().st_size // _SLOWEST
    with tempfile.TemporaryDirectory(prefix="atoll-", ignore_cleanup_errors=True) as folder:
        out = Path(folder) / "arrays"
        order: dict[str, Any] = {
            "file": inspect.getfile(read),
            "function": read.__name__,
            "options": {"path": str(path), **options},
        }
        order |= {"memory": memory, "seconds": seconds, "out": str(out)}
        _check(path, _answer(path, order, seconds), memory)
        content = np.memmap(out, np.uint8, "c") if out.stat().st_size else np.empty(0, np.uint8)
    return _arrays(content)


def _answer(path: Path, order: dict[str, Any], seconds: int) -> dict[str, str]:
    """What the child says at its end; it has no other way to reach this process."""
    command = [sys.executable, "-P", inspect.getfile(child_reader)]
    root = str(Path(__file__).parents[3])
    found = {"PYTHONPATH": os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)}
    alone = {**os.environ, **found, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, input=json.dumps(order).encode(), capture_output=True, timeout=_WAITING * seconds, env=alone
        )
    except subprocess.TimeoutExpired:
        safe_read.refuse(path, f"has not been read after {_WAITING * seconds:,} seconds", _INSTEAD)
    if done.returncode < 0:
        ended_by = signal.Signals(-done.returncode).name
        late = ended_by == "SIGXCPU"
        what = (
            f"takes more than {seconds:,} seconds of computing to read" if late else f"crashed its reader ({ended_by})"
        )
        safe_read.refuse(path, what, _INSTEAD)
    try:
        answer: dict[str, str] = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        safe_read.refuse(path, f"its reader ended without a word ({done.returncode}: {last[:200]})", _INSTEAD)
    return answer


def _check(path: Path, answer: dict[str, str], memory: int) -> None:
    if "refused" in answer:
        raise DataError(answer["refused"])
    if answer.get("error") == "MemoryError":
        safe_read.refuse(path, f"takes more than {gib(memory)} of memory to read", _INSTEAD)
    if "error" in answer:
        raise safe_read.unforeseen(path, "in a child", Accident(**answer))


def _arrays(content: Array) -> Iterator[Array]:
    """The arrays of a child's file, where they lie."""
    at, size = 0, len(content)
    while at < size:
        texts, (first, at) = content[at] == child_reader.TEXTS[0], _array(content, at + 1)
        if texts:
            ends, at = _array(content, at)
            joined = first.tobytes()
            pieces = [joined[a:b] for a, b in pairwise([0, *ends.tolist()])]
            first = np.empty(len(pieces), object)
            first[:] = pieces
        yield first


def _array(content: Array, at: int) -> tuple[Array, int]:
    """The array that begins there, and where it ends."""
    head = io.BytesIO(content[at : at + 70_000].tobytes())
    version = np.lib.format.read_magic(head)
    read_head = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_head(head)
    begin = at + head.tell()
    array: Array = np.ndarray(shape, dtype, buffer=content, offset=begin, order="F" if fortran else "C")
    return array, begin + array.nbytes
