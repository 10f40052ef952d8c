"""The child of `in_child`: runs one reader under limits and writes its arrays to a file, one behind the other.

Run as a program. It and the reader's file are loaded alone, because atoll itself takes seconds to import.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from atoll.errors import Accident, AtollError

PLAIN, TEXTS = b"a", b"t"  # an array as it is; texts as bytes in a row and where each ends


def write(out: IO[bytes], array: NDArray[Any]) -> None:
    marker, parts = PLAIN, [array]
    if array.dtype.kind == "O":
        joined, ends = b"".join(array.tolist()), np.cumsum([len(text) for text in array], dtype=np.int64)
        marker, parts = TEXTS, [np.frombuffer(joined, np.uint8), ends]
    out.write(marker)
    for part in parts:
        _write_npy(out, part)


def _write_npy(out: IO[bytes], array: NDArray[Any]) -> None:
    """As numpy does, but for its `tofile`, which does not say why it failed."""
    array = np.ascontiguousarray(array).reshape(array.shape)  # it makes a row of a single number
    np.lib.format.write_array_header_1_0(out, np.lib.format.header_data_from_array_1_0(array))
    out.write(array.reshape(-1).view(np.uint8).data)


def limit(memory: int, seconds: int) -> None:
    """No more than so many bytes of address space, as many in the file, and seconds of computing."""
    if sys.platform == "win32":
        return
    import resource

    wanted = {"CORE": 0, "CPU": seconds, "AS": memory, "FSIZE": memory}
    for name, most in wanted.items():
        what = vars(resource)[f"RLIMIT_{name}"]
        hard = resource.getrlimit(what)[1]  # none can be raised, where this process has its own
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def load(file: str, function: str) -> Callable[..., Iterator[NDArray[Any]]]:
    spec = importlib.util.spec_from_file_location("reader", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    reader: Callable[..., Iterator[NDArray[Any]]] = vars(module)[function]
    return reader


def main() -> dict[str, str]:
    """What there is to say: nothing, a refusal in words of ours, or an accident."""
    order = json.load(sys.stdin)
    read = load(order["file"], order["function"])
    limit(order["memory"], order["seconds"])
    try:
        with Path(order["out"]).open("wb") as out:
            for array in read(**order["options"]):
                write(out, array)
    except AtollError as e:
        return {"refused": str(e)}
    except Exception as e:
        return Accident.of(e)._asdict()
    return {}


if __name__ == "__main__":
    json.dump(main(), sys.stdout)
