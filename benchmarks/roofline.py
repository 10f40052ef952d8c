"""What one core gives the layers of (b) and (c) of `round.py`, in each way of asking, and the floor that follows.

    python benchmarks/roofline.py [b c] [--seconds 0.3] [--json FILE]

One thread. Every layer of a training step is timed as plain PyTorch calls it (float32, channels first), and as it might
be called: pooling by pairs (what engines do), channels last, in bfloat16, with weights packed by oneDNN and the ReLU
fused (forward only: a packed weight has no gradient), with two clients' batches on one weight (an upper bound: clients'
weights differ) and with two clients as a grouped convolution. All ways of one layer take turns and the least of many
counts, of wall and of processor time: other work on the machine makes all of them slower, but none of them quicker.
Below each table is the floor: the step if every layer ran in its quickest float32 way, if every product ran at the
speed of one large matrix product, and what the round of `round.py` would then take on as many cores as there are.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.engines import processor_has_bfloat16
from atoll.runs import hardware
from atoll.tasks.kernels.pair_pooling import pool_pairs

aten = torch.ops.aten
BF16, LAST = torch.bfloat16, torch.channels_last
Ways = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Conv:
    """A convolution of a step: batch, channels in and out, side of the picture, side of the filter."""

    batch: int
    inputs: int
    outputs: int
    side: int
    filter: int
    first: bool  # then nobody asks for the gradient of its input

    @property
    def gflop(self) -> float:
        """Of one pass: the forward one, the gradient of the weights, or that of the input."""
        after = self.side - self.filter + 1
        return 2e-9 * self.batch * self.inputs * self.outputs * (self.filter * after) ** 2

    def forward(self) -> Ways:
        x, w, b, _ = self._tensors()
        last, w_last = x.to(memory_format=LAST), w.to(memory_format=LAST)
        half, w_half, b_half = last.to(BF16), w_last.to(BF16), b.to(BF16)
        two, w_two, b_two = torch.cat([x, x]), torch.cat([w, w]), torch.cat([b, b])
        grouped = torch.cat([x, x], 1)
        packed = torch._C._nn.mkldnn_reorder_conv2d_weight(w.to_mkldnn(), (0, 0), (1, 1), (1, 1), 1, list(x.shape))
        fused = torch.ops.mkldnn._convolution_pointwise
        return {
            "as called": lambda: F.conv2d(x, w, b),
            "channels last": lambda: F.conv2d(last, w_last, b),
            "packed, ReLU fused": lambda: fused(x, packed, b, (0, 0), (1, 1), (1, 1), 1, "relu", [], ""),
            "two batches, one weight": lambda: F.conv2d(two, w, b),
            "two clients, grouped": lambda: F.conv2d(grouped, w_two, b_two, groups=2),
            "bfloat16": lambda: F.conv2d(x.to(BF16), w.to(BF16), b_half),
            "bfloat16, channels last": lambda: F.conv2d(half, w_half, b_half),
        }

    def backward(self) -> Ways:
        x, w, _, g = self._tensors()
        mask = [not self.first, True, True]

        def ask(g: Tensor, x: Tensor, w: Tensor, groups: int = 1) -> object:
            return aten.convolution_backward(g, x, w, [len(w)], (1, 1), (0, 0), (1, 1), False, (0, 0), groups, mask)

        last = [t.to(memory_format=LAST) for t in (g, x, w)]
        half, half_last = [t.to(BF16) for t in (g, x, w)], [t.to(BF16) for t in last]
        two, grouped = [torch.cat([g, g]), torch.cat([x, x]), w], [torch.cat([t, t], 1) for t in (g, x)]
        return {
            "as called": lambda: ask(g, x, w),
            "channels last": lambda: ask(*last),
            "two batches, one weight": lambda: ask(*two),
            "two clients, grouped": lambda: ask(*grouped, torch.cat([w, w]), groups=2),
            "bfloat16": lambda: ask(*half),
            "bfloat16, channels last": lambda: ask(*half_last),
        }

    def _tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        after = self.side - self.filter + 1
        x, g = (torch.randn(self.batch, c, s, s) for c, s in ((self.inputs, self.side), (self.outputs, after)))
        return x, torch.randn(self.outputs, self.inputs, self.filter, self.filter), torch.randn(self.outputs), g


@dataclass(frozen=True)
class Dense:
    """A dense layer of a step."""

    batch: int
    inputs: int
    outputs: int

    @property
    def gflop(self) -> float:
        return 2e-9 * self.batch * self.inputs * self.outputs

    def forward(self) -> Ways:
        x, w, _ = self._tensors()
        half, w_half, two = x.to(BF16), w.to(BF16), torch.cat([x, x])
        return {
            "as called": lambda: x @ w.T,
            "two batches, one weight": lambda: two @ w.T,
            "bfloat16": lambda: half @ w_half.T,
        }

    def backward(self) -> Ways:
        x, w, g = self._tensors()
        half, w_half, g_half = (t.to(BF16) for t in (x, w, g))
        two, g_two = torch.cat([x, x]), torch.cat([g, g])
        return {
            "as called": lambda: (g.T @ x, g @ w),
            "two batches, one weight": lambda: (g_two.T @ two, g_two @ w),
            "bfloat16": lambda: (g_half.T @ half, g_half @ w_half),
        }

    def _tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        shapes = (self.batch, self.inputs), (self.outputs, self.inputs), (self.batch, self.outputs)
        return tuple(torch.randn(*shape) for shape in shapes)  # type: ignore[return-value]


@dataclass(frozen=True)
class Elementwise:
    """ReLU and pooling of a picture, and the weights' update: they wait for memory, not for products."""

    shape: tuple[int, ...]
    pooled: bool
    gflop: float = 0.0

    def forward(self) -> Ways:
        x = torch.randn(*self.shape)
        last = x.to(memory_format=LAST)
        half = last.to(BF16)

        def ask(x: Tensor) -> object:
            y = torch.relu(x)
            return aten.max_pool2d_with_indices(y, [2, 2], [2, 2]) if self.pooled else y

        by_pairs = {"by pairs": lambda: pool_pairs(torch.relu(x))} if self.pooled else {}
        return {
            "as called": lambda: ask(x),
            **by_pairs,
            "channels last": lambda: ask(last),
            "bfloat16, channels last": lambda: ask(half),
        }

    def backward(self) -> Ways:
        def made(x: Tensor) -> Callable[[], object]:
            if not self.pooled:
                return lambda: aten.threshold_backward(x, x, 0)
            y, at = aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
            back = aten.max_pool2d_with_indices_backward
            return lambda: aten.threshold_backward(back(y, x, [2, 2], [2, 2], [0, 0], [1, 1], False, at), x, 0)

        x = torch.randn(*self.shape)
        last = x.to(memory_format=LAST)
        half = last.to(BF16)
        return {"as called": made(x), "channels last": made(last), "bfloat16, channels last": made(half)}


STEPS: dict[str, tuple[int, dict[str, Conv | Dense | Elementwise]]] = {  # steps of a round, and the layers of one
    "b": (
        50 * 5,
        {
            "conv 3-32": Conv(10, 3, 32, 32, 3, True),
            "ReLU": Elementwise((10, 32, 30, 30), False),
            "conv 32-64": Conv(10, 32, 64, 30, 3, False),
            "ReLU, pool": Elementwise((10, 64, 28, 28), True),
            "dense 12544-128": Dense(10, 12544, 128),
        },
    ),
    "c": (
        10 * 94,
        {
            "conv 1-6": Conv(64, 1, 6, 28, 5, True),
            "ReLU, pool": Elementwise((64, 6, 24, 24), True),
            "conv 6-16": Conv(64, 6, 16, 12, 5, False),
            "ReLU, pool 2": Elementwise((64, 16, 8, 8), True),
            "dense 256-120": Dense(64, 256, 120),
            "dense 120-84": Dense(64, 120, 84),
        },
    ),
}


def least(ways: Ways, seconds: float) -> dict[str, float]:
    """Milliseconds of each way, in turns for so long: the least of wall and processor time of any turn."""
    times: dict[str, float] = {}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < len(ways):
        for name, go in ways.items():
            wall, cpu = time.perf_counter(), time.thread_time()
            go()
            spent = min(time.perf_counter() - wall, time.thread_time() - cpu)
            times[name] = min(times.get(name, 1e9), 1e3 * spent)
    return {k: v / 2 if k.startswith("two ") else v for k, v in times.items()}  # of one client


def machine_peaks(seconds: float) -> dict[str, float]:
    """Of one core: GFLOP/s of large matrix products, GB/s of a copy beyond the caches."""
    a, big = torch.randn(768, 768), torch.randn(1 << 24)
    half, into = a.to(BF16), torch.empty_like(big)
    times = least({"float32": lambda: a @ a, "bfloat16": lambda: half @ half, "copy": lambda: into.copy_(big)}, seconds)
    rates = {k: 2e-9 * 768**3 / (1e-3 * times[k]) for k in ("float32", "bfloat16")}
    return {**rates, "GB/s": 2e-9 * 4 * len(big) / (1e-3 * times["copy"])}


def measure(name: str, seconds: float, peaks: dict[str, float]) -> dict[str, Any]:
    count, layers = STEPS[name]
    cores = len(os.sched_getaffinity(0))
    rows: dict[str, dict[str, float]] = {}
    called = best = best_half = gflop = 0.0
    for label, layer in layers.items():
        for direction, ways in (("forward", layer.forward()), ("backward", layer.backward())):
            times = rows[f"{label}, {direction}"] = least(ways, seconds)
            passes = 1 if direction == "forward" or (isinstance(layer, Conv) and layer.first) else 2
            gflop += layer.gflop * passes
            called += times["as called"]
            honest = [v for k, v in times.items() if k != "two batches, one weight"]  # weights of clients differ
            best += min(v for k, v in times.items() if v in honest and "bfloat16" not in k)
            best_half += min(honest)
            rate = f"{layer.gflop * passes / times['as called'] * 1e3:5.0f}" if layer.gflop else "     "
            told = "  ".join(f"{k} {v:.3f}" for k, v in times.items() if k != "as called")
            print(f"  {label + ', ' + direction:26} {times['as called']:7.3f} ms {rate} GFLOP/s | {told}", flush=True)
    floors = {
        "as called": called,
        "quickest in float32": best,
        "quickest with bfloat16": best_half,
        "products at the core's peak": gflop / peaks["float32"] * 1e3,
    }
    for words, ms in floors.items():
        print(f"  {words:28} {ms:7.2f} ms a step, {count * ms / cores / 1e3:6.2f} s a round on {cores} cores")
    return {"layers": rows, "floors": floors, "gflop": gflop, "steps": count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="b|c")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each layer and direction")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    bfloat16 = "has" if processor_has_bfloat16() else "has no"
    print(f"{hardware(torch.device('cpu'))['cpu']}, one thread, torch {torch.__version__}, {date.today()}")
    peaks = machine_peaks(4 * options.seconds)
    told = f"float32 {peaks['float32']:.0f} GFLOP/s, bfloat16 {peaks['bfloat16']:.0f}, copy {peaks['GB/s']:.1f} GB/s"
    print(f"one core: {told}; the processor {bfloat16} bfloat16 products")
    results: dict[str, Any] = {"peaks": peaks}
    for name in options.shapes or STEPS:
        print(f"({name})")
        with torch.no_grad():
            results[name] = measure(name, options.seconds, peaks)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
