"""How cost grows: with the cohort, the local steps, the parameters, the population and the rounds; a million clients.

    python benchmarks/growth.py [cohort steps parameters population rounds million] [--turns 7] [--quick] [--draw]

Each axis is a process of its own. All its sizes are set up first and then take turns, so that other work on the machine
falls on all of them; the best turn of each counts, in wall and in processor seconds of a whole round as `atoll run`
does it, without evaluation. `rounds` is one run of 5,000 rounds by `atoll.simulate`, evaluated every tenth, with its
resident memory; `million` trains each of 10^6 clients once, on ten rows of its own: in 100 rounds, and in one. Results
go to benchmarks/results/growth.json, and from there to docs/growth.svg (`--draw`: only that). `--quick`: small sizes,
to see that all is well; nothing is written unless `--out` says where.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import atoll
from atoll.data import Dataset, Partition
from atoll.experiment import Experiment, assemble
from atoll.records import RunFolder
from atoll.runs import RunLoop, hardware

sys.path.insert(0, str(Path(__file__).parent))
from growth_fit import bytes_per_round, draw, fit, words

HERE = Path(__file__).resolve().parent
INPUTS, CLASSES, EACH, TABLE = 60, 10, 10, 10_000  # rows of a client, and of the table that they are taken from


@dataclass(frozen=True)
class Case:
    clients: int = 10_000
    cohort: int = 100
    steps: int = 1
    hidden: int = 0  # 0: a linear model of 610 parameters


def sizes(top: int, of: Sequence[int] = (1, 3)) -> list[int]:
    """1, 3, 10, 30, ... up to the top."""
    return [d * 10**n for n in range(12) for d in of if d * 10**n <= top]


AXES: dict[str, Callable[[bool], dict[int, Case]]] = {
    "cohort": lambda quick: {n: Case(10**6, n) for n in sizes(1000 if quick else 100_000) if n >= 10},
    "steps": lambda quick: {n: Case(steps=n) for n in sizes(30 if quick else 1000)},
    "parameters": lambda quick: {
        71 * h + 10: Case(cohort=10, hidden=h) for h in ([1, 14, 141] if quick else [1, 14, 141, 1408, 14_085, 140_845])
    },
    "population": lambda quick: {n: Case(n) for n in sizes(10_000 if quick else 10**6) if n >= 1000},
}


def module(hidden: int) -> nn.Module:
    torch.manual_seed(0)
    if not hidden:
        return nn.Linear(INPUTS, CLASSES)
    return nn.Sequential(nn.Linear(INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))


def examples(rows: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(rows, INPUTS, generator=g), torch.randint(0, CLASSES, (rows,), generator=g)


def shared_rows(clients: int) -> Partition:
    """10 different rows of the table for each client, as columns; clients share rows."""
    rows = torch.arange(clients)[:, None] * 7 + torch.arange(EACH) * 13
    return Partition(torch.arange(clients + 1) * EACH, rows.remainder_(TABLE).reshape(-1)).check(TABLE, overlap=True)


def experiment(cohort: dict[str, Any], steps: int = 1) -> Experiment:
    return Experiment.parse(
        {
            "rounds": 1_000_000,
            "data": {"name": "atoll.runs.python_inputs:arrays", "digest": "benchmark"},
            "cohort": cohort,
            "local": {"batch": EACH, "epochs": steps},
            "algorithm": {"name": "fedavg", "lr": 0.01},
            "evaluate": {"every": 1_000_000, "clients": 0},
        }
    )


def run_loop(given: Experiment, data: Dataset, partition: Partition, model: nn.Module, folder: Path) -> RunLoop:
    files = RunFolder(folder)
    files.create(0)
    return RunLoop(assemble(given, data, partition, model, "cpu"), files)


@dataclass
class Cost:
    """Of one piece of work: the least of several turns, since other work only ever adds."""

    wall: float = float("inf")
    processor: float = float("inf")

    @contextmanager
    def turn(self, share: int = 1) -> Iterator[None]:
        wall, processor = time.perf_counter(), time.process_time()
        yield
        self.wall = min(self.wall, (time.perf_counter() - wall) / share)
        self.processor = min(self.processor, (time.process_time() - processor) / share)


def axis(name: str, turns: int, quick: bool) -> dict[str, Any]:
    """All sizes of an axis, in turns; short rounds several at a time, so that they are not lost in the clock."""
    cases, data = AXES[name](quick), Dataset.from_arrays(*examples(TABLE))
    setups, rounds = {n: Cost() for n in cases}, {n: Cost() for n in cases}
    runs: dict[int, RunLoop] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for n, case in cases.items():
            for again in range(3 if name == "population" else 1):
                with setups[n].turn():
                    given = experiment({"name": "fixed", "size": case.cohort}, case.steps)
                    clients, folder = shared_rows(case.clients), Path(scratch) / f"{n}-{again}"
                    runs[n] = run_loop(given, data, clients, module(case.hidden), folder)
        share = dict.fromkeys(cases, 1)
        for n, run in runs.items():  # steps are captured once a shape has been seen often
            began = time.perf_counter()
            while len(run.plan.history) < 20 and time.perf_counter() - began < 4:
                run.next_round()
            share[n] = max(1, min(50, int(0.2 / (sum(run.plan.history[-1]["seconds"].values()) + 1e-9))))
        for _ in range(turns):
            for n, run in runs.items():
                with rounds[n].turn(share[n]):
                    for _ in range(share[n]):
                        run.next_round()
    processor, wall = ([getattr(c, kind) for c in rounds.values()] for kind in ("processor", "wall"))
    found = {"sizes": list(cases), "processor_s": processor, "wall_s": wall, "fit": fit(list(cases), processor)}
    return {**found, **({"setup_s": [c.wall for c in setups.values()]} if name == "population" else {})}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def long_run(rounds: int, every: int, folder: Path, leak: Callable[[], object] | None = None) -> dict[str, Any]:
    """A whole run, evaluated and recorded: seconds since its first round and resident bytes, every so many rounds."""
    at, wall, processor, resident = [], [], [], []
    began: list[float] = []

    def watch(done: int, rounds: int, entry: object) -> None:
        if leak is not None:
            leak()
        began[:] = began or [time.perf_counter(), time.process_time()]
        if done % every == 0:
            at.append(done)
            wall.append(time.perf_counter() - began[0])
            processor.append(time.process_time() - began[1])
            resident.append(resident_bytes())

    x, y = examples(1000 * EACH)
    atoll.simulate(
        module(0), data=(x, y), test=(x[:500], y[:500]), clients=list(torch.arange(len(y)).reshape(1000, EACH)),
        cohort={"name": "fixed", "size": 20}, algorithm={"name": "fedavg", "lr": 0.01}, batch=EACH, rounds=rounds,
        evaluate={"every": 10, "clients": 0}, watch=watch, out=folder,
    )  # fmt: skip
    return {"at": at, "wall_s": wall, "processor_s": processor, "resident": resident}


def over_rounds(quick: bool) -> dict[str, Any]:
    rounds, every = (500, 10) if quick else (5000, 50)
    with tempfile.TemporaryDirectory() as scratch:
        run = long_run(rounds, every, Path(scratch) / "run")
    marks = [n for n in sizes(rounds, (1, 2, 5)) if n >= max(50, every)]
    where = [run["at"].index(n) for n in marks]
    processor, wall = ([run[kind][i] for i in where] for kind in ("processor_s", "wall_s"))
    resident, quarter = run["resident"], len(run["at"]) // 4
    late = (run["processor_s"][-1] - run["processor_s"][-1 - quarter]) / (run["at"][-1] - run["at"][-1 - quarter])
    early = (run["processor_s"][quarter] - run["processor_s"][0]) / (run["at"][quarter] - run["at"][0])
    return {
        "sizes": marks, "processor_s": processor, "wall_s": wall, "fit": fit(marks, processor),
        "at": run["at"], "resident_mb": [round(r / 1e6, 3) for r in resident],
        "bytes_per_round": bytes_per_round(run["at"], resident),
        "first_quarter_ms": 1e3 * early, "last_quarter_ms": 1e3 * late,
    }  # fmt: skip


def million(quick: bool) -> dict[str, Any]:
    """Each of 10^6 clients trained once, on rows of its own: in 100 rounds, and in one."""
    clients, found = 10_000 if quick else 10**6, {}
    began = time.perf_counter()
    data = Dataset.from_arrays(*examples(clients * EACH))
    made = time.perf_counter() - began
    ways = {"100 rounds": ({"name": "cyclic", "size": clients // 100, "min_separation": 100}, 100)}
    ways["1 round"] = ({"name": "everyone"}, 1)
    for name, (cohort, rounds) in ways.items():
        whole, cost = Cost(), Cost()
        with tempfile.TemporaryDirectory() as scratch, whole.turn():
            own = Partition(torch.arange(clients + 1) * EACH, torch.arange(clients * EACH))
            run = run_loop(experiment(cohort), data, own, module(0), Path(scratch) / "run")
            with cost.turn():
                for _ in range(rounds):
                    run.next_round()
            trained = sum(entry["cohort"]["size"] for entry in run.plan.history)
        assert trained == clients, f"{trained} of {clients} clients were trained"
        found[name] = {
            "wall_s": cost.wall, "processor_s": cost.processor, "with_setup_s": whole.wall, "clients": trained,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, "engine": run.engine.choice(),
        }  # fmt: skip
    return {"data_s": made, **found}


def measured(name: str, turns: int, quick: bool) -> dict[str, Any]:
    special = {"rounds": lambda: over_rounds(quick), "million": lambda: million(quick)}
    return special.get(name, lambda: axis(name, turns, quick))()


def apart(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own, so that its peak is its own."""
    command = [sys.executable, __file__, name, "--turns", str(options.turns), "--here"]
    done = subprocess.run(command + ["--quick"] * options.quick, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"growth: {name} ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def lines(name: str, found: dict[str, Any]) -> list[str]:
    if name == "million":
        return [
            f"million, {way}: {r['wall_s']:.1f} s wall, {r['processor_s']:.1f} s processor, {r['with_setup_s']:.1f} s "
            f"with set-up, peak {r['peak_mb']:.0f} MB, chunks of {r['engine'].get('chunk', 1):,}"
            for way, r in found.items()
            if isinstance(r, dict) and "wall_s" in r
        ]
    head = [words(name, found["fit"])]
    for n, processor, wall in zip(found["sizes"], found["processor_s"], found["wall_s"], strict=True):
        head.append(f"{n:>12,} {processor * 1e3:>10.2f} ms processor {wall * 1e3:>10.2f} ms wall")
    if name == "rounds":
        resident = found["resident_mb"]
        head.append(
            f"resident {resident[len(resident) // 10]:.1f} MB after a tenth, {resident[-1]:.1f} MB at the end, "
            f"{found['bytes_per_round']:.0f} bytes a round; a round took {found['first_quarter_ms']:.2f} ms in "
            f"the first quarter and {found['last_quarter_ms']:.2f} in the last, of processor time"
        )
    return head


def main() -> None:
    names = [*AXES, "rounds", "million"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axes", nargs="*", metavar="|".join(names))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--draw", action="store_true", help="only the picture, from what was measured before")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "growth.json")
    parser.add_argument("--picture", type=Path, default=HERE.parent / "docs" / "growth.svg")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.axes) - set(names):
        parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(names)}")
    if options.here:
        print(json.dumps(measured(options.axes[0], options.turns, options.quick)))
        return
    keep = not options.quick or options.out != parser.get_default("out")
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in [] if options.draw else options.axes or names:
        load = os.getloadavg()[0]
        results[name] = {**apart(name, options), "date": str(date.today()), "load_before": round(load, 1)}
        print(*lines(name, results[name]), sep="\n", flush=True)
        if keep:
            results["machine"] = f"{hardware(torch.device('cpu'))['cpu']}, torch {torch.__version__}"
            options.out.write_text(json.dumps(results, indent=None, separators=(",", ":")) + "\n")
    if keep:
        draw(results, options.picture)


if __name__ == "__main__":
    main()
