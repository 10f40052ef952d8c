"""What a user waits for on a GPU: the first round of `atoll run`, and pfl-research's CIFAR-10 benchmark as a whole.

    python -m benchmarks.gpu_whole [first whole] [--rows pfl resnet transformer lstm] [--json FILE]

first: seconds from starting the process to the first line of the record, cold (no kernel was ever compiled) and warm
(a second process). whole: 1,500 rounds with evaluation every ten, start-up included, without and with noise; pictures
are random bytes. Python's own bytecode is there in both, as after an installation.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch

from atoll.experiment import Experiment
from benchmarks.gpu_rows import ROWS

PATIENCE = 180.0  # seconds
PRIVATE: dict[str, Any] = {
    "transform": [
        "equal_weights",
        {"name": "clip_l2", "max_norm": 0.4},
        {"name": "gaussian_noise", "noise_multiplier": 1.0},
    ],
}


def first_round(experiment: dict[str, Any], environment: dict[str, str]) -> float:
    """Seconds until the record has a line; the process is stopped then."""
    with tempfile.TemporaryDirectory() as scratch:
        process, record = _started({**experiment, "rounds": 200}, Path(scratch), environment)
        began = time.perf_counter()
        try:
            while time.perf_counter() - began < PATIENCE and process.poll() is None:
                if record.exists() and record.stat().st_size:
                    return round(time.perf_counter() - began, 2)
                time.sleep(0.01)
        finally:
            process.kill()
            process.wait()
    return float("nan")


def whole(experiment: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    """Seconds of a run of 1,500 rounds, from starting the process to its end."""
    with tempfile.TemporaryDirectory() as scratch:
        began = time.perf_counter()
        process, record = _started({**experiment, "rounds": 1500}, Path(scratch), environment)
        process.wait()
        seconds = round(time.perf_counter() - began, 2)
        lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    return {"seconds": seconds, "rounds": len(lines), "evaluations": sum("accuracy" in line for line in lines)}


def _started(experiment: dict[str, Any], place: Path, environment: dict[str, str]) -> tuple[Any, Path]:
    Experiment.parse(experiment)  # mistakes are told here
    (place / "file.json").write_text(json.dumps(experiment))
    code = (
        "import json, sys, atoll; from pathlib import Path; "
        f"atoll.run(json.loads(Path({str(place / 'file.json')!r}).read_text()), {str(place / 'run')!r}, device='cuda')"
    )
    log = (place / "log").open("w")
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=log, stderr=log)
    return process, place / "run" / "record.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["first", "whole"], choices=["first", "whole"])
    parser.add_argument("--rows", nargs="*", default=[*ROWS], choices=[*ROWS])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {date.today()}", flush=True)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as caches:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(Path(caches) / "bytecode")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        engine = {"name": "vector", "precision": "tf32"}
        for name in options.rows if "first" in options.what else ():
            experiment = {**ROWS[name].experiment, "engine": engine}
            kernels = {
                "TRITON_CACHE_DIR": str(Path(caches) / name),
                "TORCHINDUCTOR_CACHE_DIR": str(Path(caches) / name),
            }
            if not figures:  # fills the cache of bytecode
                first_round(experiment, {**environment, "TRITON_CACHE_DIR": str(Path(caches) / "bytecode run")})
            cold, warm = (first_round(experiment, environment | kernels) for _ in range(2))
            figures[f"first {name}"] = {"cold_s": cold, "warm_s": warm}
            print(f"first {name}", figures[f"first {name}"], flush=True)
        if "whole" in options.what:
            for name, more in {"whole pfl": {}, "whole pfl, private": PRIVATE}.items():
                figures[name] = whole({**ROWS["pfl"].experiment, "engine": engine, **more}, environment)
                print(name, figures[name], flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
