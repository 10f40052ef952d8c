"""Milliseconds per round on a GPU, as a user runs it: `atoll.run` of an experiment, records and progress included.

    python benchmarks/gpu.py [pfl silo bare sweep] [--rounds 60] [--precision tf32] [--compile] [--json FILE]

pfl: pfl-research's CIFAR-10 round, 50 of 1,000 clients x 5 steps of 10, its CNN with dropout (1.63 M parameters).
silo: NIID-Bench's, 10 clients x 940 steps of 64, LeNet. bare: the pfl round in a plain PyTorch loop on the same GPU.
sweep: 12 silo runs (3 seeds x 4 values of mu) as one job, against one alone. Pictures are random bytes in the shapes
of CIFAR-10 and MNIST: a round's time does not depend on what they show.
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
import torch.nn.functional as F

import atoll
from atoll.data import Dataset, Pixels
from atoll.experiment import Experiment
from atoll.runs import Bar, run_together, silent
from atoll.tasks import MODELS

PFL: dict[str, Any] = {
    "data": {"name": "benchmarks.gpu:pictures", "channels": 3, "side": 32, "examples": 50_000},
    "partition": {"name": "iid", "clients": 1000},
    "cohort": {"name": "fixed", "size": 50},
    "task": {"model": "cnn"},
    "local": {"batch": 10, "epochs": 1},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "evaluate": {"every": 10, "clients": 0},
    "checkpoint": {"every": 0},
}
SILO: dict[str, Any] = {
    "data": {"name": "benchmarks.gpu:pictures", "channels": 1, "side": 28, "examples": 60_000},
    "partition": {"name": "iid", "clients": 10},
    "task": {"model": "lenet"},
    "local": {"batch": 64, "epochs": 10},
    "algorithm": {"name": "fedprox", "lr": 0.01, "mu": 0.01},
    "evaluate": {"clients": 0},
    "checkpoint": {"every": 0},
}


def pictures(channels: int, side: int, examples: int) -> Dataset:
    """Random bytes in the shape of a well-known set."""
    g = torch.Generator().manual_seed(0)

    def part(n: int) -> dict[str, torch.Tensor]:
        x = torch.randint(0, 256, (n, channels, side, side), generator=g, dtype=torch.uint8)
        return {"x": x, "y": torch.randint(0, 10, (n,), generator=g)}

    return Dataset(
        "pictures", "classification", part(examples), part(10_000), (channels, side, side), 10, Pixels()
    ).check()


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


def bare(rounds: int) -> dict[str, Any]:
    """The pfl round as a plain loop over clients."""
    torch.set_float32_matmul_precision("high")
    data = pictures(3, 32, 50_000).train
    x, y = data["x"].cuda().float() / 255, data["y"].cuda()
    model = MODELS["cnn"](inputs=(3, 32, 32), outputs=10).cuda()
    server = [p.detach().clone() for p in model.parameters()]
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        before = time.perf_counter()
        total = [torch.zeros_like(p) for p in server]
        for c in torch.randperm(1000)[:50].tolist():
            with torch.no_grad():
                for p, s in zip(model.parameters(), server, strict=True):
                    p.copy_(s)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for rows in (torch.randperm(50, device="cuda") + 50 * c).split(10):
                optimizer.zero_grad()
                F.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
            with torch.no_grad():
                for t, p in zip(total, model.parameters(), strict=True):
                    t.add_(p, alpha=1 / 50)
        server = total
        torch.cuda.synchronize()
        times.append(time.perf_counter() - before)
    return {"round_ms": round(1e3 * statistics.median(times), 3)}


def kernels(experiment: dict[str, Any], precision: str, compile: bool) -> None:
    """Where a round's time goes on the GPU."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        timed(experiment, 8, precision, compile)
    rows = [e for e in found.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
    for e in sorted(rows, key=lambda e: -e.self_device_time_total)[:40]:
        print(f"{e.self_device_time_total / 1e3:10.2f} ms {e.count:6d} x {e.key[:100]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["pfl", "silo", "bare"])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.precision}, {date.today()}", flush=True)
    found: dict[str, Any] = {}
    for name in options.what:
        if name == "bare":
            found[name] = bare(3)
        elif name == "pfl":
            found[name] = timed(PFL, options.rounds, options.precision, options.compile)
        elif name == "sweep":
            found[name] = sweep(8, options.precision, options.compile)
        elif name == "silo":
            found[name] = timed(SILO, max(7, options.rounds // 8), options.precision, options.compile)
            found[name]["step_ms"] = round(found[name]["phases_ms"]["train"] / 940, 4)
        print(name, json.dumps(found[name], indent=1), flush=True)
        if options.kernels and name in ("pfl", "silo"):
            kernels(
                PFL if name == "pfl" else {**SILO, "local": {"batch": 64, "epochs": 1}},
                options.precision,
                options.compile,
            )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
