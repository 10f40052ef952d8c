"""Readers for `in_child` that do what a crafted file can make a parser do. Loaded alone by the child."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np

from atoll.errors import DataError


def crash(path: str) -> Iterator[Any]:
    yield np.zeros(3)
    os.kill(os.getpid(), signal.SIGSEGV)


def allocate(path: str) -> Iterator[Any]:
    yield np.ones(1 << 30)


def write_much(path: str) -> Iterator[Any]:
    for _ in range(1 << 10):
        yield np.ones(1 << 20)


def loop(path: str) -> Iterator[Any]:
    while True:
        pass


def sleep(path: str) -> Iterator[Any]:
    signal.pause()
    yield from ()


def leave(path: str) -> Iterator[Any]:
    os._exit(0)


def raise_something(path: str) -> Iterator[Any]:
    raise StopIteration("what it says\nand more")
    yield


def refuse(path: str) -> Iterator[Any]:
    raise DataError(f"{path}: is not ours. Take another.")
    yield


def no_text(path: str) -> Iterator[Any]:
    yield np.array([b"a", [1]], object)


ARRAYS = [
    np.arange(12, dtype=">i4").reshape(3, 4),
    np.array(1.5),
    np.zeros((0, 7), np.float16),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array(["é", "\ud800", ""]),
    np.array([b"", b"a\0", b"\xff" * 300], object),
    np.array([], object),
    np.array([True, False]),
    np.array([(1, 2.0)], [("a", "i2"), ("b", "f8")]),
]


def arrays(path: str, times: int = 1) -> Iterator[Any]:
    for _ in range(times):
        yield from ARRAYS
