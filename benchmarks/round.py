"""Seconds per round, as ratios to a bare PyTorch loop over clients on the same machine, in one run.

    python benchmarks/round.py [a b c] [--repeats 5] [--json FILE]

The bare loop is what one would write by hand: copy the weights in, train with torch.optim.SGD, add the weights up. It
does nothing else. Atoll's figure is a whole round as `atoll run` does it (sampling, index plan, training, server step,
record line with a digest of the model), without evaluation. Both are timed in turns; the best of each counts.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.data import Dataset, Partition
from atoll.experiment import Experiment, assemble
from atoll.records import RunFolder
from atoll.runs import RunLoop, hardware
from atoll.tasks import MODELS


@dataclass(frozen=True)
class Shape:
    words: str
    clients: int
    steps: int
    batch: int
    inputs: tuple[int, ...]
    model: str
    rounds: int  # timed in one turn, so that short rounds are not lost in the clock


SHAPES = {
    "a": Shape("100 clients x 2 steps of 10, Linear(60, 10)", 100, 2, 10, (60,), "linear", 20),
    "b": Shape("50 clients x 5 steps of 10, pfl-research's CNN (1.6 M)", 50, 5, 10, (3, 32, 32), "cnn", 1),
    "c": Shape("10 clients x 94 steps of 64, LeNet on 28x28", 10, 94, 64, (1, 28, 28), "lenet", 1),
}


def data(shape: Shape) -> tuple[Tensor, Tensor, nn.Module]:
    torch.manual_seed(0)
    n = shape.clients * shape.steps * shape.batch
    x, y = torch.randn(n, *shape.inputs), torch.randint(0, 10, (n,))
    return x, y, MODELS[shape.model](inputs=shape.inputs, outputs=10)


def bare(shape: Shape) -> Callable[[], object]:
    """The loop one would write by hand."""
    x, y, model = data(shape)
    each = shape.steps * shape.batch
    start = [p.detach().clone() for p in model.parameters()]

    def go() -> list[Tensor]:
        total = [torch.zeros_like(p) for p in start]
        order = torch.stack([torch.randperm(each) for _ in range(shape.clients)])
        for c in range(shape.clients):
            with torch.no_grad():
                for p, s in zip(model.parameters(), start, strict=True):
                    p.copy_(s)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for rows in (order[c] + c * each).split(shape.batch):
                optimizer.zero_grad()
                F.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
            with torch.no_grad():
                for t, p in zip(total, model.parameters(), strict=True):
                    t.add_(p, alpha=each)
        return [t / len(x) for t in total]

    return go


def atoll_round(shape: Shape, folder: Path, engine: str | dict[str, Any]) -> tuple[Callable[[], object], RunLoop]:
    """One more round of a real run, evaluation aside."""
    x, y, model = data(shape)
    each = shape.steps * shape.batch
    experiment = Experiment.parse(
        {
            "rounds": 1_000_000,
            "data": {"name": "atoll.runs.python_inputs:arrays", "digest": "benchmark"},
            "local": {"batch": shape.batch},
            "algorithm": {"name": "fedavg", "lr": 0.1},
            "engine": engine,
            "evaluate": {"every": 1_000_000, "clients": 0},
        }
    )
    partition = Partition.from_lists(list(torch.arange(len(x)).reshape(shape.clients, each)))
    files = RunFolder(folder)
    files.create(0)
    loop = RunLoop(assemble(experiment, Dataset.from_arrays(x, y), partition, model, "cpu"), files)
    return loop.next_round, loop


def seconds(go: Callable[[], object], times: int) -> float:
    before = time.perf_counter()
    for _ in range(times):
        go()
    return (time.perf_counter() - before) / times


def measure(shape: Shape, repeats: int, engine: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as scratch:
        ours, run = atoll_round(shape, Path(scratch) / "run", engine)
        theirs = bare(shape)
        warm = 80 if shape.rounds > 1 else 1  # steps are captured once a shape has been seen often
        seconds(ours, warm)
        seconds(theirs, 1)
        pairs = [(seconds(theirs, shape.rounds), seconds(ours, shape.rounds)) for _ in range(repeats)]
        last = run.plan.history[-1]["seconds"]
    loop, mine = min(p[0] for p in pairs), min(p[1] for p in pairs)
    outside = 1 - last["train"] / sum(last.values())
    return {
        "shape": shape.words,
        "engine": run.engine.name,
        "loop_ms": round(loop * 1e3, 3),
        "atoll_ms": round(mine * 1e3, 3),
        "ratio": round(loop / mine, 2),
        "outside_training": round(outside, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="a|b|c")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    threads = f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    print(f"{hardware(torch.device('cpu'))['cpu']}, {threads}, {date.today()}")
    print(f"{'':2} {'loop ms':>9} {'atoll ms':>9} {'ratio':>7}  {'outside':>7}  engine")
    found = {}
    for name in options.shapes or SHAPES:
        found[name] = r = measure(SHAPES[name], options.repeats, options.engine)
        print(
            f"{name:2} {r['loop_ms']:>9} {r['atoll_ms']:>9} {r['ratio']:>6}x  {r['outside_training']:>7.1%}  "
            f"{r['engine']:8} {r['shape']}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
