"""What every peer shares: the workloads, the data they read, the clock, and the way results go back. Needs only numpy.

An adapter (`<peer>/run.py`) is a function `train(job, tick)` that trains with the peer's own classes, calls `tick()` at
the end of every round from the peer's own hook, and returns the learned parameters as {name: array}, named and laid out
like the modules in `models.py`:

    python <peer>/run.py WORKLOAD --rounds N --data FOLDER --out FILE.npz

writes the parameters to FILE.npz and prints one line, `PEER {"ends": [...], ...}`: the time at the end of every round.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

CLASSES = 10
MARK = "PEER "


@dataclass(frozen=True)
class Workload:
    words: str
    clients: int
    steps: int
    batch: int
    inputs: tuple[int, ...]
    parameters: int
    rounds: int  # as many as make a steady median
    epochs: int = 1  # local ones, of `steps` each
    rate: float = 0.1  # of local SGD
    classes: int = CLASSES
    tokens: bool = False  # inputs are so many whole numbers below `classes`, and the token behind them is learned

    @property
    def each(self) -> int:
        """Examples of one client."""
        return self.steps * self.batch


WORKLOADS = {
    "a": Workload("100 clients x 2 steps of 10, Linear(60, 10)", 100, 2, 10, (60,), 610, 150),
    "b": Workload("50 clients x 5 steps of 10, CNN on 3x32x32", 50, 5, 10, (3, 32, 32), 1_626_442, 5),
    "c": Workload("10 clients x 94 steps of 64, LeNet on 1x28x28", 10, 94, 64, (1, 28, 28), 44_426, 4),
    "d": Workload(
        "100 clients x 5 epochs of 1 step of 50, CNN on 3x32x32", 100, 1, 50, (3, 32, 32), 62_006, 4, epochs=5
    ),
    "e": Workload("10 clients x 6 steps of 10, Linear(784, 10)", 10, 6, 10, (784,), 7_850, 100, rate=0.03),
    "f": Workload(
        "4 clients x 2 steps of 8, ResNet-18 with GroupNorm on 3x32x32", 4, 2, 8, (3, 32, 32), 11_173_962, 4, rate=0.001
    ),
    "g": Workload(
        "10 clients x 4 steps of 16 texts of 20 of 10,004 words, transformer",
        *(10, 4, 16, (20,), 1_965_024, 5),
        classes=10_004,
        tokens=True,
    ),
    "h": Workload(
        "10 clients x 2 steps of 16 texts of 80 of 90 characters, LSTM of 2 x 256",
        *(10, 2, 16, (80,), 822_570, 5),
        rate=0.5,
        classes=90,
        tokens=True,
    ),
}


@dataclass(frozen=True)
class Job:
    """A workload with its arrays: what a user of a peer has before they write a line for it."""

    name: str
    rounds: int
    folder: Path
    x: (
        np.ndarray
    )  # (clients * each, *inputs), float32, or int64 of tokens; client c holds rows c * each to (c + 1) * each
    y: np.ndarray  # int64
    start: dict[str, np.ndarray]  # the weights training starts from
    work: Workload = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "work", WORKLOADS[self.name])

    def client(self, c: int) -> tuple[np.ndarray, np.ndarray]:
        """The examples of one client."""
        rows = slice(c * self.work.each, (c + 1) * self.work.each)
        return self.x[rows], self.y[rows]


@lru_cache(maxsize=1)
def job(name: str, rounds: int, folder: Path) -> Job:
    """Read a workload from its file."""
    held = np.load(folder / f"{name}.npz")
    start = {key.removeprefix("start/"): held[key] for key in held.files if key.startswith("start/")}
    return Job(name, rounds, folder, held["x"], held["y"], start)


def main(train: Callable[[Job, Callable[[], None]], dict[str, np.ndarray]]) -> None:
    """Run an adapter from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    ends: list[float] = []
    learned = train(job(options.workload, options.rounds, options.data), lambda: ends.append(time.time()))
    if os.environ.get("RANK", "0") != "0":
        return  # one of several processes that hold the same model; the first speaks for all
    np.savez(options.out, **learned)
    norm = float(np.sqrt(sum(float((p.astype(np.float64) ** 2).sum()) for p in learned.values())))
    sys.__stdout__.write(f"\n{MARK}{json.dumps({'ends': ends, 'norm': norm})}\n")  # some peers replace print
