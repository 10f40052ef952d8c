"""Seconds per round and peak memory from 10^3 to 10^6 clients, cohorts of 10 to 10,000, and 10^2 to 10^7 parameters.

    python benchmarks/scale.py [population cohort parameters memory] [--json FILE]

Every line is a process of its own, so that its peak is its own. A round is what `atoll run` does (sample, train, server
step, record line with a digest of the model), without evaluation; the median of the second half of the rounds counts.
Each client holds 10 rows of one table and takes one step. The sweeps:

    population   10^3 .. 10^6 clients, cohorts of 100, 610 parameters
    cohort       10 .. 10,000 of 10^6 clients, 610 parameters
    parameters   10^2 .. 10^7, cohorts of 100 down to 10 of 10^4 clients
    memory       SCAFFOLD with 10^6 clients (2.4 GB of controls) in a file, 0.5 GB allowed; its checkpoint and a resume
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import nn

from atoll import tree
from atoll.data import Dataset, Partition
from atoll.engines import RowStore
from atoll.experiment import Experiment, assemble
from atoll.records import RunFolder
from atoll.runs import RunLoop, hardware

ROWS = 10_000  # of the table that all clients' rows are taken from
EACH = 10  # rows of a client
PHASES = ("sample", "train", "server", "record")


@dataclass(frozen=True)
class Case:
    clients: int
    cohort: int
    inputs: int = 60
    hidden: int = 0  # 0: a linear model
    algorithm: str = "fedavg"
    memory_gb: float | None = None
    seconds: float = 8.0  # of rounds, at most


SWEEPS: dict[str, list[Case]] = {
    "population": [Case(10**n, 100) for n in (3, 4, 5, 6)],
    "cohort": [Case(10**6, 10**n) for n in (1, 2, 3, 4)],
    "parameters": [
        Case(10**4, 100, 9),
        Case(10**4, 100, 99),
        Case(10**4, 100, 100, 90),
        Case(10**4, 100, 784, 126),
        Case(10**4, 30, 784, 1258),
        Case(10**4, 10, 784, 12578),
    ],
    "memory": [Case(10**6, 1_000, algorithm="scaffold", memory_gb=0.5, seconds=20)],
}


def module(case: Case) -> nn.Module:
    torch.manual_seed(0)
    if not case.hidden:
        return nn.Linear(case.inputs, 10)
    return nn.Sequential(nn.Linear(case.inputs, case.hidden), nn.ReLU(), nn.Linear(case.hidden, 10))


def partition(clients: int) -> Partition:
    """10 different rows of the table for each client, as columns; clients share rows."""
    rows = torch.arange(clients)[:, None] * 7 + torch.arange(EACH) * 13
    return Partition(torch.arange(clients + 1) * EACH, rows.remainder_(ROWS).reshape(-1)).check(ROWS, overlap=True)


def experiment(case: Case) -> Experiment:
    engine = {"name": "auto"} | ({"memory_gb": case.memory_gb} if case.memory_gb else {})
    return Experiment.parse(
        {
            "rounds": 1_000_000,
            "data": {"name": "atoll.runs.python_inputs:arrays", "digest": "benchmark"},
            "cohort": {"name": "fixed", "size": case.cohort},
            "local": {"batch": EACH},
            "algorithm": {"name": case.algorithm, "lr": 0.01},
            "engine": engine,
            "evaluate": {"every": 1_000_000, "clients": 0},
        }
    )


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e3 if sys.platform == "linux" else 1e6)


def measure(case: Case) -> dict[str, Any]:
    """One line, in this process."""
    imported, began = peak_mb(), time.perf_counter()
    torch.manual_seed(0)
    data = Dataset.from_arrays(torch.randn(ROWS, case.inputs), torch.randint(0, 10, (ROWS,)))
    setup = assemble(experiment(case), data, partition(case.clients), module(case), "cpu")
    with tempfile.TemporaryDirectory() as scratch:
        files = RunFolder(Path(scratch) / "run")
        files.create(0)
        run = RunLoop(setup, files)
        made, before = time.perf_counter() - began, peak_mb()
        rounds = timed(run, case.seconds)
        late = rounds[len(rounds) // 2 :]
        found = {
            **asdict(case),
            "parameters": tree.count(setup.model["params"]),
            "engine": run.engine.name,
            "setup_s": made,
            "round_s": statistics.median(sum(r.values()) for r in late),
            **{f"{p}_s": statistics.median(r[p] for r in late) for p in PHASES},
            "rounds": len(rounds),
            "import_mb": imported,
            "setup_mb": before,
            "peak_mb": peak_mb(),
        }
        return {**found, **(spilled(run) if run.place.spills else {})}


def timed(run: RunLoop, seconds: float) -> list[dict[str, float]]:
    """Seconds by phase of every round: as many as fit, 3 to 200, so that steps of small models are captured."""
    until, found = time.perf_counter() + seconds, []
    while len(found) < 3 or (len(found) < 200 and time.perf_counter() < until):
        run.next_round()
        found.append(run.plan.history[-1]["seconds"])
    return found


def spilled(run: RunLoop) -> dict[str, Any]:
    """What the file takes, and a checkpoint of it and back."""
    store, early = run.own.store, resident_mb()
    assert isinstance(store, RowStore)
    assert store.file is not None
    written, began = len(store.ids()), time.perf_counter()
    run.state.checkpoint()
    saved, again = time.perf_counter() - began, RunLoop(run.setup, run.folder)
    began = time.perf_counter()
    again.resume()
    assert len(again.engine.state().ids()) == written
    return {
        "file_gb": store.file.total / 1e9,
        "on_disk_gb": store.file.allocated() / 1e9,
        "clients_written": written,
        "checkpoint_s": saved,
        "resume_s": time.perf_counter() - began,
        "grown_mb": resident_mb() - early,
        "peak_after_mb": peak_mb(),
    }


def apart(case: Case) -> dict[str, Any]:
    """One line, in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--case", json.dumps(asdict(case))], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def line(r: dict[str, Any]) -> str:
    phases = "".join(f"{r[f'{p}_s'] * 1e3:>9.2f}" for p in PHASES)
    return (
        f"{r['clients']:>10,}{r['cohort']:>8,}{r['parameters']:>12,}{r['round_s'] * 1e3:>11.2f}{phases}"
        f"{r['setup_s']:>9.2f}{r['setup_mb']:>10.0f}{r['peak_mb']:>9.0f}  {r['engine']}"
    )


HEAD = (
    f"{'clients':>10}{'cohort':>8}{'parameters':>12}{'round ms':>11}{'sample':>9}{'train':>9}{'server':>9}{'record':>9}"
    f"{'set-up s':>9}{'set-up MB':>10}{'peak MB':>9}  engine"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="*", metavar="|".join(SWEEPS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(Case(**json.loads(options.case)))))
        return
    began = time.perf_counter()
    threads = f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    print(f"{hardware(torch.device('cpu'))['cpu']}, {threads}, {date.today()}")
    found: dict[str, Any] = {}
    for name in options.sweeps or SWEEPS:
        print(f"\n{name}\n{HEAD}")
        found[name] = []
        for case in SWEEPS[name]:
            found[name].append(r := apart(case))
            print(line(r), flush=True)
            if "file_gb" in r:
                print(
                    f"{'':10}{r['clients_written']:,} clients written: {r['on_disk_gb']:.2f} GB of a file of "
                    f"{r['file_gb']:.2f} GB; checkpoint {r['checkpoint_s']:.1f} s, resume {r['resume_s']:.1f} s, "
                    f"peak then {r['peak_after_mb']:.0f} MB"
                )
    print(
        f"\n{time.perf_counter() - began:.0f} s in all; {found[next(iter(found))][0]['import_mb']:.0f} MB are imports"
    )
    if options.json:
        options.json.write_text(json.dumps({"date": str(date.today()), "sweeps": found}, indent=1))


if __name__ == "__main__":
    main()
