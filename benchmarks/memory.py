"""Peak memory of a run against what it must hold, and its growth over rounds.

    python benchmarks/memory.py

What must be held: the data, one model, and a chunk of the cohort (as measured for one client before the first round).
"""

from __future__ import annotations

import resource
import sys
import tempfile
from pathlib import Path

import torch

from atoll import tree

sys.path.insert(0, str(Path(__file__).parent))
from round import SHAPES, atoll_round


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def flat_over_rounds(rounds: int) -> tuple[float, float]:
    """Resident megabytes after a tenth of the rounds, and after all of them: shape (a), which captures its step."""
    with tempfile.TemporaryDirectory() as scratch:
        go, _ = atoll_round(SHAPES["a"], Path(scratch) / "run", "vector")
        for _ in range(rounds // 10):
            go()
        early = resident_mb()
        for _ in range(rounds - rounds // 10):
            go()
        return early, resident_mb()


def peak(chunk: int) -> tuple[float, float]:
    """Peak megabytes above the start of shape (b), and what it must hold."""
    base = resident_mb()
    with tempfile.TemporaryDirectory() as scratch:
        go, run = atoll_round(SHAPES["b"], Path(scratch) / "run", {"name": "vector", "chunk": chunk})
        must = tree.nbytes(run.columns) + tree.nbytes(run.setup.model) + chunk * run.place.client_bytes
        go()
        high = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return high - base, must / 1e6


def main() -> None:
    used, must = peak(10)
    print(f"stack of 10 CNNs: {used:.0f} MB at the peak, {must:.0f} MB must be held: {used / must:.2f}x")
    early, late = flat_over_rounds(1000)
    print(f"1,000 rounds: {early:.1f} MB after 100, {late:.1f} MB after 1,000 ({late - early:+.1f} MB)")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
