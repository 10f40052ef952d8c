"""What privacy costs in time: seconds per round with a mechanism over seconds without, in one run.

    python benchmarks/privacy.py [a b c] [--device cuda] [--repeats 9] [--precision tf32] [--json FILE]

The same experiment four times on the stacked engine: plain FedAvg, and with `clip_l2` + `gaussian_noise`,
`adaptive_clip` + `gaussian_noise`, `clip_l2` + `banded_noise` (48 bands, as in pfl-research). All four are set up
first; then their rounds take turns, so that whatever else the machine does falls on all of them. A round is a whole
one as `atoll run` makes it (sampling, index plan, training, mechanism, account, server step, record line with a digest
of the model), without evaluation. "extra" is the median over turns of (with / without) - 1, "best" the
same of the fastest rounds of each. The aim is at most 10 %.

c is privacy inside each client (`[local.privacy]`): without, as it runs, and with a gradient for every example by
`vmap` (what models take that `atoll.tasks.ghost` does not know).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import torch

from atoll.data import Dataset, Partition
from atoll.experiment import Experiment, assemble
from atoll.records import RunFolder
from atoll.runs import RunLoop, hardware
from atoll.tasks import MODELS

CLIP: dict[str, Any] = {"name": "clip_l2", "max_norm": 0.4}
NOISE: dict[str, Any] = {"name": "gaussian_noise", "noise_multiplier": 1.0}
Mechanism = Mapping[str, Any]  # of an experiment: "transform", or "privacy" of [local]; "vmap" is ours
MECHANISMS: dict[str, Mechanism] = {
    "none": {},
    "clip_l2 + gaussian_noise": {"transform": ["equal_weights", CLIP, NOISE]},
    "adaptive_clip + gaussian_noise": {"transform": ["equal_weights", "adaptive_clip", NOISE]},
    "clip_l2 + banded_noise": {
        "transform": ["equal_weights", CLIP, {"name": "banded_noise", "noise_multiplier": 1.0, "bands": 48}]
    },
}
LOCAL: dict[str, Any] = {"max_norm": 1.0, "noise_multiplier": 1.0}
EXAMPLES: dict[str, Mechanism] = {
    "none": {},
    "local.privacy": {"privacy": LOCAL},
    "local.privacy by vmap": {"privacy": LOCAL, "vmap": True},
}


@dataclass(frozen=True)
class Shape:
    words: str
    clients: int
    steps: int
    batch: int
    inputs: tuple[int, ...]
    model: str
    rounds: int  # of one turn, so that short rounds are not lost in the clock
    warm: dict[str, int]  # rounds before the first turn: steps are captured once a shape has been seen often
    mechanisms: Mapping[str, Mechanism] = field(default_factory=lambda: MECHANISMS)


SHAPES = {
    "a": Shape("100 clients x 2 steps of 10, Linear(60, 10)", 100, 2, 10, (60,), "linear", 20, {"cpu": 80, "cuda": 80}),
    "b": Shape(
        "50 clients x 5 steps of 10, pfl-research's CNN (1.6 M)",
        50,
        5,
        10,
        (3, 32, 32),
        "cnn",
        1,
        {"cpu": 1, "cuda": 10},
    ),
    "c": Shape(
        "90 clients x 2 steps of 64, LeNet; private examples",
        90,
        2,
        64,
        (1, 28, 28),
        "lenet",
        1,
        {"cpu": 1, "cuda": 20},
        EXAMPLES,
    ),
}
Where = Literal["cpu", "cuda"]


def prepared(shape: Shape, how: Mechanism, rounds: int, folder: Path, options: argparse.Namespace) -> RunLoop:
    """A run that has made no round yet."""
    torch.manual_seed(0)
    each, chain = shape.steps * shape.batch, list(how.get("transform", []))
    x = torch.randn(shape.clients * each, *shape.inputs)
    y = torch.randint(0, 10, (len(x),))
    raw: dict[str, Any] = {
        "rounds": rounds + 1,  # the last one would be measured
        "data": {"name": "atoll.runs.python_inputs:arrays", "digest": "benchmark"},
        "local": {"batch": shape.batch, **({"privacy": how["privacy"]} if "privacy" in how else {})},
        "algorithm": {"name": "fedavg", "lr": 0.1},
        "transform": chain,
        "engine": {"name": "vector", "precision": options.precision, "compile": options.compile},
        "evaluate": {"every": rounds + 1, "clients": 0},
    }
    if any(isinstance(layer, dict) and layer["name"] == "banded_noise" for layer in chain):
        # Everybody takes part in every round here, which bands do not allow: the noise of a system in which they wait.
        raw["transform"][-1] = {**chain[-1], "noise_cohort": shape.clients, "min_separation": 48}
        raw["privacy"] = {"simulate": {"population": 48 * shape.clients, "sampling": "cyclic"}}
    partition = Partition.from_lists(list(torch.arange(len(x)).reshape(shape.clients, each)))
    model = MODELS[shape.model](inputs=shape.inputs, outputs=10)
    files = RunFolder(folder)
    files.create(0)
    with patch("atoll.privacy.run.dpsgd.ghost_layers", lambda _: ()) if how.get("vmap") else nullcontext():
        setup = assemble(Experiment.parse(raw), Dataset.from_arrays(x, y), partition, model, options.device)
    return RunLoop(setup, files)


def seconds(loop: RunLoop, rounds: int, device: Where) -> float:
    """The mean of so many rounds."""
    wait(device)
    before = time.perf_counter()
    for _ in range(rounds):
        loop.next_round()
    wait(device)
    return (time.perf_counter() - before) / rounds


def wait(device: Where) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(shape: Shape, options: argparse.Namespace) -> dict[str, Any]:
    """All mechanisms on one shape, in turns; each turn begins with another one."""
    turns, warm = options.repeats, shape.warm[options.device]
    mechanisms, rounds = shape.mechanisms, warm + shape.rounds * turns
    with tempfile.TemporaryDirectory() as scratch:
        loops = {
            name: prepared(shape, how, rounds, Path(scratch) / str(i), options)
            for i, (name, how) in enumerate(mechanisms.items())
        }
        for loop in loops.values():
            seconds(loop, warm, options.device)
        times: dict[str, list[float]] = {name: [] for name in mechanisms}
        for turn in range(turns):
            order = list(mechanisms)[turn % len(mechanisms) :] + list(mechanisms)[: turn % len(mechanisms)]
            for name in order:
                times[name].append(seconds(loops[name], shape.rounds, options.device))
    return {"shape": shape.words, "mechanisms": {name: figures(times[name], times["none"]) for name in mechanisms}}


def figures(mine: Sequence[float], without: Sequence[float]) -> dict[str, float]:
    """Milliseconds of a round, and what it takes more than one without: 0.1 is a tenth more."""
    extra = statistics.median(a / b for a, b in zip(mine, without, strict=True)) - 1
    return {
        "median_ms": round(1e3 * statistics.median(mine), 3),
        "best_ms": round(1e3 * min(mine), 3),
        "extra": round(extra, 4),
        "best_extra": round(min(mine) / min(without) - 1, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="a|b|c", choices=[[], *SHAPES])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    machine = hardware(torch.device(options.device))
    name = machine["gpu"] if options.device == "cuda" else f"{machine['cpu']}, {torch.get_num_threads()} threads"
    print(f"{name}, torch {torch.__version__}, {date.today()}", flush=True)
    found: dict[str, Any] = {"machine": machine, "torch": torch.__version__, "date": str(date.today())}
    for key in options.shapes or SHAPES:
        found[key] = one = measure(SHAPES[key], options)
        print(f"\n{key}  {one['shape']}\n   {'median ms':>10} {'best ms':>10} {'extra':>8} {'best':>8}")
        for mechanism, r in one["mechanisms"].items():
            print(
                f"   {r['median_ms']:>10} {r['best_ms']:>10} {r['extra']:>8.1%} {r['best_extra']:>8.1%}  {mechanism}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
