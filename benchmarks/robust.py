"""What defences cost: milliseconds for one aggregate, beside ByzFL's in the same run.

    python benchmarks/robust.py [--device cuda] [--repeats 5] [--json FILE]

On a CPU, one thread, processor time: stacks of 20 x 10^6 and 50 x 10^5, with ByzFL where it is installed
(`pip install --no-deps byzfl==0.0.11`), given torch tensors and NumPy arrays; the aim is a fifth of its time for
median, trimmed mean and multi-Krum. On a
GPU: 50 x 1.63 M, the updates of pfl-research's CIFAR-10 round, in wall time; the aim is a tenth of that round
(`benchmarks/round.py`), about 1.2 ms. What is timed is `finish`, with its diagnostics.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import math
import sys
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from atoll import rng
from atoll.core import Info, Stack, Update
from atoll.reducers import REDUCERS, Mean, Median
from atoll.runs import hardware

SHAPES = {"cpu": ((20, 10**6), (50, 10**5)), "cuda": ((50, 1_630_000),)}
PLAIN = ("Average", "Median", "TrMean", "Krum", "MultiKrum")  # timed with NumPy arrays, too
AIMED = ("median", "trimmed_mean", "multi_krum")


def defences(n: int) -> dict[str, Any]:
    """A fifth of the clients may lie."""
    f = n // 5
    options: dict[str, dict[str, Any]] = {
        "mean": {},
        "median": {},
        "trimmed_mean": {"share": 0.2},
        "meamed": {"byzantine": f},
        "krum": {"byzantine": f},
        "multi_krum": {"byzantine": f},
        "bulyan": {"byzantine": f},
        "geometric_median": {},
        "mda": {"byzantine": f},
        "caf": {"byzantine": f},
        "dnc": {"byzantine": f},
        "norm_clipping": {"max_norm": 1.0},
        "centred_clipping": {"radius": 1.0},
        "clipped_clustering": {},
        "sign_guard": {},
        "robust_lr": {},
        "three_sigma": {},
        "nnm": {"byzantine": f, "inner": Median()},
        "arc": {"byzantine": f, "inner": Mean()},
        "bucketing": {"inner": Median()},
    }
    return {name: REDUCERS[name](**given) for name, given in options.items()}


def byzfl_modules() -> tuple[Any, Any]:
    """ByzFL's aggregators and what goes before them, without its benchmark, which needs torchvision and seaborn."""
    sys.modules.setdefault("byzfl.benchmark", ModuleType("byzfl.benchmark"))
    from byzfl.aggregators import aggregators, preaggregators

    return aggregators, preaggregators


def byzfl_rules(n: int) -> dict[str, Callable[[Tensor], Any]]:
    """Those that both have; nothing where ByzFL is not installed."""
    if importlib.util.find_spec("byzfl") is None:
        return {}
    rules, before = byzfl_modules()
    f, middle = n // 5, rules.Median()
    return {
        "mean": rules.Average(),
        "median": middle,
        "trimmed_mean": rules.TrMean(f),
        "meamed": rules.Meamed(f),
        "krum": rules.Krum(f),
        "multi_krum": rules.MultiKrum(f),
        "geometric_median": rules.GeometricMedian(T=3),
        "caf": rules.CAF(f),
        "centred_clipping": rules.CenteredClipping(tau=1.0),
        "nnm": lambda x: middle(before.NNM(f)(x)),
        "arc": lambda x: rules.Average()(before.ARC(f)(x)),
    }


def milliseconds(call: Callable[[], Any], device: str, repeats: int) -> float:
    """The fastest of so many, after one more."""
    call()
    found = []
    for _ in range(repeats):
        if device == "cuda":
            torch.cuda.synchronize()
        clock = time.process_time if device == "cpu" else time.perf_counter
        start = clock()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(1e3 * (clock() - start))
    return round(min(found), 3)


def _aggregate(reducer: Any, stack: Stack, state: Any) -> Any:
    """From the stack that the engine hands over; those who keep it take no time before `finish`."""
    key = rng.key(0)
    return reducer.finish(reducer.lift(stack.updates, stack.info, key), state, key)


def measure(n: int, d: int, device: str, repeats: int) -> dict[str, dict[str, float]]:
    """Ours and theirs take turns, defence by defence, on the same numbers."""
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(0)).to(device)
    ones = torch.ones(n, device=device)
    stack = Stack(Update({"w": x}, ones), Info(torch.arange(n, device=device), ones, ones, 0 * ones))
    theirs = byzfl_rules(n) if device == "cpu" else {}
    rows: dict[str, dict[str, float]] = {}
    for name, reducer in defences(n).items():
        call = partial(_aggregate, reducer, stack, reducer.init({"w": x[0]}))
        rows[name] = {"ms": milliseconds(call, device, repeats)}
        if name in theirs:
            rows[name] |= _beside(theirs[name], x, rows[name]["ms"])
        shown = [rows[name].get(k, float("nan")) for k in ("byzfl_ms", "byzfl_numpy_ms", "times_faster")]
        print(
            f"{rows[name]['ms']:>9.2f} ms {shown[0]:>9.1f} ms {shown[1]:>9.1f} ms {shown[2]:>7.1f}x  {name}", flush=True
        )
    return rows


def _beside(rule: Callable[[Any], Any], x: Tensor, ours: float) -> dict[str, float]:
    """ByzFL takes torch tensors and NumPy arrays; some of its rules write into what they are given."""
    by_torch = milliseconds(partial(rule, x.clone()), "cpu", 2)
    rule = copy.deepcopy(rule)  # one remembers the last aggregate
    by_numpy = milliseconds(partial(rule, x.numpy().copy()), "cpu", 1) if type(rule).__name__ in PLAIN else float("nan")
    slower = max(by_torch, 0.0 if math.isnan(by_numpy) else by_numpy)
    found = {
        "byzfl_ms": by_torch,
        "times_faster": round(by_torch / ours, 1),
        "times_faster_at_most": round(slower / ours, 1),
    }
    return found if math.isnan(by_numpy) else {**found, "byzfl_numpy_ms": by_numpy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    print(f"{hardware(torch.device(options.device))}, torch {torch.__version__}, {date.today()}", flush=True)
    figures = {}
    for n, d in SHAPES[options.device]:
        print(f"\n{n} x {d:,}: ours, ByzFL with torch, with NumPy, times faster than with torch", flush=True)
        figures[f"{n}x{d}"] = measure(n, d, options.device, options.repeats)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    cells = [(shape, name, rows[name].get("times_faster", 5.0)) for shape, rows in figures.items() for name in AIMED]
    short = [f"{shape} {name}" for shape, name, times in cells if times < 5]
    if short:
        sys.exit(f"below 5x: {', '.join(short)}")


if __name__ == "__main__":
    main()
