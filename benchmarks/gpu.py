"""Milliseconds per round on a GPU, as a user runs it: `atoll.run` of an experiment, records and progress included.

    python -m benchmarks.gpu [pfl resnet transformer lstm silo sweep] [--bare] [--rounds 60] [--precision tf32]
                             [--compile] [--kernels] [--json FILE]

The first four are in `gpu_rows.py`; `--bare` runs each as a plain PyTorch loop over clients on the same GPU, too.
silo: NIID-Bench's, 10 clients x 940 steps of 64, LeNet. sweep: 12 silo runs (3 seeds x 4 values of mu) as one job,
against one alone. Pictures are random bytes, texts random tokens: a round's time does not depend on what they show.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch

import atoll
from atoll.experiment import Experiment
from atoll.runs import Bar, run_together, silent
from benchmarks.gpu_rows import ROWS, bare

SILO: dict[str, Any] = {
    "data": {"name": "benchmarks.gpu_rows:pictures", "channels": 1, "side": 28, "examples": 60_000},
    "partition": {"name": "iid", "clients": 10},
    "task": {"model": "lenet"},
    "local": {"batch": 64, "epochs": 10},
    "algorithm": {"name": "fedprox", "lr": 0.01, "mu": 0.01},
    "evaluate": {"clients": 0},
    "checkpoint": {"every": 0},
}


class Stamps:
    """When each round ended."""

    def __init__(self) -> None:
        self.at = [time.perf_counter()]
        self.entries: list[Mapping[str, Any]] = []

    def __call__(self, done: int, rounds: int, entry: Mapping[str, Any]) -> None:
        self.at.append(time.perf_counter())
        self.entries.append(entry)


def timed(experiment: dict[str, Any], rounds: int, precision: str, compile: bool, warm: int = 5) -> dict[str, Any]:
    """Rounds of an experiment after the first few."""
    with tempfile.TemporaryDirectory() as scratch:
        stamps = Stamps()
        given = {
            **experiment,
            "rounds": rounds,
            "engine": {"name": "vector", "precision": precision, "compile": compile},
        }
        with_bar: dict[str, Any] = {"callbacks": [Bar("benchmark")], "progress": False}
        done = atoll.run(given, Path(scratch) / "run", device="cuda", watch=stamps, **with_bar)
    each = [b - a for a, b in zip(stamps.at[:-1], stamps.at[1:], strict=True)][warm:]
    plain = [t for t, e in zip(each, stamps.entries[warm:], strict=True) if "accuracy" not in e] or each
    looks = [e["seconds"]["evaluate"] for e in stamps.entries[warm:] if "accuracy" in e]
    last = stamps.entries[-2 if len(plain) < len(each) else -1]["seconds"]
    outside = [1 - e["seconds"]["train"] / t for e, t in zip(stamps.entries[warm:], each, strict=True)]
    return {
        "round_ms": round(1e3 * statistics.median(plain), 3),
        "evaluation_ms": round(1e3 * statistics.median(looks), 3),
        "outside_training": round(statistics.median(outside), 4),
        "phases_ms": {k: round(1e3 * v, 3) for k, v in last.items()},
        "engine": done.info["engine"]["reason"],
        "first_rounds_s": [round(b - a, 2) for a, b in zip(stamps.at[:5], stamps.at[1:6], strict=True)],
    }


def sweep(rounds: int, precision: str, compile: bool) -> dict[str, Any]:
    """3 seeds x 4 values of mu as one job, against one run alone."""
    alone = timed(SILO, rounds, precision, compile, warm=3)["round_ms"]
    engine = {"name": "vector", "precision": precision, "compile": compile}
    cells = [
        Experiment.parse({**SILO, "rounds": rounds, "seed": seed, "engine": engine, "algorithm": algorithm})
        for seed in range(3)
        for algorithm in ({"name": "fedprox", "lr": 0.01, "mu": mu} for mu in (0.001, 0.01, 0.1, 1.0))
    ]
    stamps = Stamps()
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / str(i) for i in range(len(cells))]
        watchers: list[Any] = [silent] * (len(cells) - 1) + [stamps]
        run_together(cells, folders, device="cuda", watch=watchers)
    each = [b - a for a, b in zip(stamps.at[:-1], stamps.at[1:], strict=True)][3:]
    together = 1e3 * statistics.median(each)
    phases = {k: round(1e3 * v, 3) for k, v in stamps.entries[-1]["seconds"].items()}
    return {
        "alone_ms": alone,
        "twelve_ms": round(together, 3),
        "times_one": round(together / alone, 2),
        "phases_ms": phases,
    }


def kernels(experiment: dict[str, Any], precision: str, compile: bool) -> None:
    """Where a round's time goes on the GPU."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        timed(experiment, 8, precision, compile)
    rows = [e for e in found.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
    for e in sorted(rows, key=lambda e: -e.self_device_time_total)[:40]:
        print(f"{e.self_device_time_total / 1e3:10.2f} ms {e.count:6d} x {e.key[:100]}")


def one(name: str, options: argparse.Namespace) -> dict[str, Any]:
    if name == "sweep":
        return sweep(8, options.precision, options.compile)
    how = options.precision, options.compile
    if name == "silo":
        figures = timed(SILO, max(7, options.rounds // 8), *how)
        return figures | {"step_ms": round(figures["phases_ms"]["train"] / 940, 4)}
    figures = timed(ROWS[name].experiment, options.rounds, *how)
    return figures | ({"bare_ms": bare(ROWS[name], 3)["round_ms"]} if options.bare else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=[*ROWS], choices=[*ROWS, "silo", "sweep"])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.precision}, {date.today()}", flush=True)
    found: dict[str, Any] = {}
    for name in options.what:
        found[name] = one(name, options)
        print(name, json.dumps(found[name], indent=1), flush=True)
        if options.kernels and name != "sweep":
            experiment = {**SILO, "local": {"batch": 64, "epochs": 1}} if name == "silo" else ROWS[name].experiment
            kernels(experiment, options.precision, options.compile)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
