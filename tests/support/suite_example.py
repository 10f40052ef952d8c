"""A suite's results made by hand: five rows, four methods and a quirk, three seeds; a failed and a single-seed cell."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from atoll.records import Cell, Results, Trace, Trial

METHODS = ("fedavg", "fedprox", "scaffold", "fednova")
ROWS = {
    ("fmnist", "iid"): (89.6, 89.5, 90.1, 89.6),
    ("fmnist", "dirichlet(0.5)"): (88.1, 88.2, 89.2, 88.2),
    ("fmnist", "classes(2)"): (74.0, 74.2, 80.1, 70.3),
    ("fcube", "synthetic"): (99.8, 99.8, 99.7, 99.6),
    ("fcube", "iid"): (99.7, 99.7, 99.8, 99.7),
}
QUIRK = "controls start from a random network"
ROUNDS = 20


def trace(
    mean: float, seed: int, *, salt: int = 0, together: int = 1, rounds: int = ROUNDS, step: float = 1e6
) -> Trace:
    """A run that rises to `mean` per cent; runs of one seed share a part of their noise."""
    own, shared = np.random.default_rng([seed, salt]), np.random.default_rng([seed, 999])
    t = np.arange(1, rounds + 1)
    end = mean + 0.5 * shared.normal() + 0.25 * own.normal()
    values = end - (end - 10) * np.exp(-t / 3) + 0.3 * own.normal(size=rounds)
    spread = {"mean": end / 100 - 0.01, "std": 0.04, "worst_decile": end / 100 - 0.08, "gini": 0.02}
    return Trace(
        seed, f"{salt:04x}{seed:060x}", tuple(map(int, t)), tuple(float(v) / 100 for v in np.minimum(values, 100)),
        bytes=tuple(map(float, step * t)), seconds=tuple(map(float, 0.5 * together * t)), together=together,
        clients=spread, validation=end / 100, partition=f"p{seed}",
    )  # fmt: skip


def cell(
    row: Sequence[str], method: str, mean: float, salt: int, seeds: Sequence[int] = (0, 1, 2), **more: Any
) -> Cell:
    step = 2e6 if method.startswith("scaffold") else 1e6
    runs = tuple(trace(mean, seed, salt=salt, together=12 if method == "fedprox" else 1, step=step) for seed in seeds)
    path = {"data": row[0], "partition": row[1], "algorithm": method}
    block = "tabular" if row[0] == "fcube" else "images"
    return Cell(block, path, runs, wanted=3, skew={"label": 0.3}, **more)


def tried(base: float, salt: int, lost: Sequence[float] = (0.1, 0.0, 0.6, 8.0)) -> dict[str, Any]:
    """Four trials of mu, the second the best."""
    trials = tuple(
        Trial({"algorithm.mu": mu}, (trace(base - less, 0, salt=salt + k),), (base - less) / 100)
        for k, (mu, less) in enumerate(zip((0.001, 0.01, 0.1, 1.0), lost, strict=True))
    )
    return {"trials": trials, "settings": {"algorithm.mu": 0.01}}


def example() -> Results:
    """The whole suite."""
    cells: list[Cell] = []
    for i, (row, means) in enumerate(ROWS.items()):
        for j, (method, mean) in enumerate(zip(METHODS, means, strict=True)):
            extra = tried(mean, 1000 * i + 100) if method == "fedprox" else {}
            cells.append(cell(row, method, mean, 10 * i + j, **extra))
        if row[0] == "fmnist":
            name = "scaffold (as published)"
            cells.append(cell(row, name, means[2] - 9, 10 * i + 7, quirk=QUIRK))
    failed = {
        "seed 0": "CUDA out of memory: 3 GB asked, 1 GB free",
        "seed 1": "CUDA out of memory: 3 GB asked, 1 GB free",
    }
    cells[3] = replace(cells[3], runs=(), failed=failed)  # fmnist/iid/fednova
    cells[8] = replace(
        cells[8], runs=cells[8].runs[:1], failed={"seed 1": "stopped by the budget"}
    )  # .../dirichlet/fednova
    made = {
        "command": "atoll bench niid-bench --only 'fmnist/*'",
        "date": "2026-03-01T10:00:00",
        "versions": {"atoll": "0.1.0", "torch": "2.10"},
        "machine": {"cpu": "2 cores", "gpu": None},
    }
    return Results(
        "niid-bench", "NIID-Bench, Table 3", "full", "accuracy", True, ("data", "partition", "algorithm"), tuple(cells),
        about="Four methods on data that is split in six ways.", tuning="validation", scale=100.0,
        reference="niid_bench_table3", made=made,
    )  # fmt: skip


def small() -> Results:
    """One row of it: quick to draw."""
    whole = example()
    return replace(whole, cells=tuple(cell for cell in whole.cells if cell.row == ("fcube", "iid")))
