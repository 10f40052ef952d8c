"""Victims per second of an attack by optimisation: all as one stack, and one by one, in one run.

    python -m benchmarks.inversion [--device cuda] [--victims 256] [--steps 200] [--method inverting] [--images 1]
                                   [--data mnist] [--model lenet] [--alone 4] [--stack N] [--json FILE]

Seconds are those of the attack alone, after a run of two steps that warms up. "alone": so many victims one after the
other, the same steps each.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch

from atoll.attacks.leakage import AttackOptions, attack
from atoll.experiment import Experiment, find_device
from atoll.runs import hardware


def timed(experiment: Experiment, options: AttackOptions, device: str) -> dict[str, Any]:
    attack(experiment, replace(options, steps=2), device)
    before = time.process_time()
    found = attack(experiment, options, device).summary
    seconds, used = found["seconds"]["attack"], time.process_time() - before
    rate = options.victims / seconds
    scores = {k: round(v["mean"], 4) for k, v in found["scores"].items()}
    memory = torch.cuda.max_memory_allocated() / 2**30 if found["device"].startswith("cuda") else None
    return {
        "victims": options.victims,
        "seconds": seconds,
        "processor_seconds": round(used, 2),
        "victims_per_second": round(rate, 3),
        "milliseconds_per_victim_and_step": round(1e3 * seconds / options.victims / (options.steps or 1), 4),
        "gpu_gib": memory,
        "identified": found["identification"]["rate"],
        **scores,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--victims", type=int, default=256)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--method", default="inverting")
    parser.add_argument("--images", type=int, default=1)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--alone", type=int, default=4)
    parser.add_argument("--stack", type=int)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    raw = {
        "rounds": 1,
        "data": given.data,
        "partition": {"name": "iid", "clients": max(given.victims, 10)},
        "task": {"model": given.model},
        "local": {"batch": 0},
        "algorithm": {"name": "fedsgd", "lr": 0.1},
    }
    experiment = Experiment.parse(raw)
    options = AttackOptions(given.method, given.victims, images=given.images, steps=given.steps, stack=given.stack)
    rows = {"stack": timed(experiment, options, given.device)}
    if given.alone:
        rows["alone"] = timed(experiment, replace(options, victims=given.alone, stack=1), given.device)
    for name, row in rows.items():
        print(name, json.dumps(row))
    if given.alone:
        ratio = rows["stack"]["victims_per_second"] / rows["alone"]["victims_per_second"]
        print(f"a stack does {ratio:.1f} times as many victims per second")
    if given.json:
        about = {
            "date": str(date.today()),
            "hardware": hardware(find_device(given.device)),
            "options": vars(given) | {"json": None},
            "rows": rows,
        }
        given.json.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
