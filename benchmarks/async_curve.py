"""PAPAYA's picture from the results of a suite: virtual seconds until an accuracy against clients at work at a time.

atoll bench async-against-sync --out runs/async
python benchmarks/async_curve.py runs/async/results.json docs/topologies-asynchronous.svg
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from atoll.records import read_results

SHAPES = ("o-", "s-", "^-", "d-")


def curves(results: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Of every server: how many are at work, mean and standard deviation of the seconds over seeds."""
    found = defaultdict(list)
    for cell in read_results(results).cells:
        ends = np.array([run.values[-1] for run in cell.runs])
        found[cell.path["server"]].append((int(cell.path["concurrency"].split()[0]), ends.mean(), ends.std(ddof=1)))
    return {server: sorted(points) for server, points in found.items()}


def main() -> None:
    figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    for shape, (server, points) in zip(SHAPES, curves(Path(sys.argv[1])).items(), strict=False):
        work, mean, spread = zip(*points, strict=True)
        axes.errorbar(work, mean, spread, fmt=shape, capsize=3, label=server)
    axes.set(xscale="log", yscale="log", xlabel="clients at work at a time", ylabel="virtual seconds until 85 %")
    axes.set_xticks(work, map(str, work))
    axes.minorticks_off()
    axes.set_yticks([5, 10, 20, 40, 80], ["5", "10", "20", "40", "80"])
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(sys.argv[2], metadata={"Date": None})


if __name__ == "__main__":
    main()
