"""What compressors cost in time: seconds per round with one over seconds without, in one run.

    python benchmarks/compression.py [--device cuda] [--repeats 9] [--json FILE]

pfl-research's CIFAR-10 round (50 clients x 5 steps of 10, its CNN of 1.6 M parameters), as `benchmarks/privacy.py`
measures it: all are set up first, then their rounds take turns. Beside it the bytes of one update on the wire, headers
included, and how many times fewer that is than 32 bits a number. The aim is at most 15 %.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch

from atoll.runs import hardware
from benchmarks.privacy import SHAPES, Mechanism, measure, prepared

CHAINS: dict[str, list[Any]] = {
    "none": [],
    "top_k 1 %": [{"name": "top_k", "share": 0.01}],
    "rand_k 1 %": [{"name": "rand_k", "share": 0.01}],
    "low_rank 3": [{"name": "low_rank", "rank": 3}],
    "qsgd 16": ["qsgd"],
    "uniform_quantise 8": ["uniform_quantise"],
    "uniform_quantise 8, rotated": [{"name": "uniform_quantise", "rotate": True}],
    "drive": ["drive"],
    "sign": [{"name": "sign", "feedback": 1.0}],
    "ternary 1 %": ["ternary"],
    "half": ["half"],
    "top_k 1 %, half": [{"name": "top_k", "share": 0.01}, "half"],
    "sketch": [{"name": "sketch", "columns": 16384}],
    "relevance": ["relevance"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", nargs="*", default=list(CHAINS))
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{hardware(torch.device(options.device))}, torch {torch.__version__}, {date.today()}", flush=True)
    chains: dict[str, Mechanism] = {n: {"transform": CHAINS[n]} for n in dict.fromkeys(["none", *options.only])}
    figures = measure(replace(SHAPES["b"], mechanisms=chains), options)["mechanisms"]
    for name, row in figures.items():
        row["bytes"] = sent_bytes(chains[name], options)
        row["ratio"] = round(figures["none"]["bytes"] / row["bytes"], 1)
        print(f"{row['median_ms']:>9} ms {row['extra']:>8.1%} {row['bytes']:>10,} B {row['ratio']:>7}x  {name}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


def sent_bytes(how: Mechanism, options: argparse.Namespace) -> int:
    """Of one client's update in the first round, rounded."""
    with tempfile.TemporaryDirectory() as scratch:
        loop = prepared(SHAPES["b"], how, 2, Path(scratch) / "run", options)
        loop.next_round()
        return round(loop.plan.history[-1]["bytes"]["up"] / SHAPES["b"].clients)


if __name__ == "__main__":
    main()
