"""Faults and bad input for as long as it is told: kill -9, files cut short, mutated experiments, malformed data files.

    python benchmarks/soak.py [kills cuts experiments files] [--minutes 10] [--seed 0]
    python benchmarks/soak.py fuzz --cases 10000        experiments and files, 10,000 each

Every case has one good end or two: a killed run ends with the bits of an undisturbed one; a folder with a file that was
cut does so too, or is refused; an experiment is set up or refused; a data file is read or refused. Refused means by an
AtollError; "unforeseen" is a file that others' parser refused with an error of its own, passed on in our words.
Anything else is a fault: another error, other bits, a crash, no end within a minute, or a Python error in a line
of atoll that was called damage ("OURS"). It is printed, and the program ends with 1. Children have limits on memory and
time. Seeds count on from the first case's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded: bits depend on it, and children share the cores

import atoll
from atoll import tree
from atoll.errors import AtollError
from atoll.runs import Run
from tests.support.mutated_experiments import mutated, tried
from tests.support.mutated_files import samples

PROCESSES = multiprocessing.get_context("forkserver")
BATCH = 50  # cases in one child
SECONDS, BYTES = 60, 6 << 30
GOOD = {"same", "refused", "unforeseen", "ready", "read", "killed", "ended before"}
VICTIM = {
    "rounds": 16,
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5},
    "cohort": {"name": "fixed", "size": 4},
    "task": {"model": {"name": "mlp", "widths": [16], "dropout": 0.3}},
    "local": {"max_steps": 5},
    "algorithm": {"name": "scaffold", "lr": 0.1},
    "transform": [{"name": "top_k", "share": 0.3}],
    "engine": "loop",
    "evaluate": {"every": 2, "holdout": 0.2},
    "checkpoint": {"every": 3},
}

Counts = Counter[tuple[str, str, str]]  # of what was asked for, what kind of case it was, how it ended
Case = Callable[[int, Path], tuple[str, str]]  # seed, scratch folder -> what kind of case it was, how it ended


def experiment_case(seed: int, scratch: Path) -> tuple[str, str]:
    path = scratch / "e.toml"
    path.write_text(mutated(random.Random(seed)), "utf-8")
    return "experiment", tried(path, scratch)


def file_case(seed: int, scratch: Path) -> tuple[str, str]:
    names = sorted(SAMPLES)
    name = names[seed % len(names)]
    return name, SAMPLES[name].read(scratch, SAMPLES[name].mutated(random.Random(seed)))


def cut_case(seed: int, scratch: Path) -> tuple[str, str]:
    """Cut one file of an interrupted run at a random place, and resume."""
    draw, folder = random.Random(seed), scratch / "run"
    shutil.copytree(HALF, folder)
    path = draw.choice(sorted(p for p in folder.iterdir() if p.is_file() and p.stat().st_size))
    kept = path.read_bytes()
    path.write_bytes(kept[: draw.randrange(len(kept))])
    name = f"cut {path.name}".partition("-")[0]
    try:
        return name, "same" if fingerprint(atoll.run(VICTIM, folder, resume=True)) == WHOLE else "OTHER BITS"
    except AtollError:
        return name, "refused"


CASES: dict[str, Case] = {"experiments": experiment_case, "files": file_case, "cuts": cut_case}
KINDS, FUZZ = ("kills", *CASES), ("experiments", "files")


def fingerprint(run: Run) -> str:
    """Parameters, records but for the seconds, and what each client measured."""
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in run.history]
    clients = json.loads((run.folder / "clients.json").read_text())
    return json.dumps([tree.digest(run.params), lines, clients, run.status])


def prepare(place: Path) -> None:
    """What cases need, in this process and in every child."""
    global SAMPLES, HALF, WHOLE
    warnings.simplefilter("ignore")
    SAMPLES, HALF = samples(), place / "half"
    if (place / "whole").exists():
        WHOLE = fingerprint(Run(place / "whole"))


def child(kind: str, seeds: range, place: Path, report: Connection) -> None:
    prepare(place)
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    for seed in seeds:
        signal.alarm(SECONDS)  # ends this process: nothing can catch and turn it into a refusal
        with tempfile.TemporaryDirectory() as scratch:
            report.send(("begun", seed, ""))
            try:
                report.send((*CASES[kind](seed, Path(scratch)), ""))
            except Exception as e:
                report.send((kind, f"RAW {type(e).__name__}", traceback.format_exc()))


def in_children(kind: str, seeds: range, place: Path, counts: Counts) -> None:
    """A batch of cases; one that ends its child is counted, and the rest go to another child."""
    late: set[int] = set()
    while seeds:
        ours, theirs = PROCESSES.Pipe(duplex=False)
        worker = PROCESSES.Process(target=child, args=(kind, seeds, place, theirs))
        worker.start()
        theirs.close()
        seed = seeds[0]
        while (message := received(ours)) is not None:
            name, end, trace = message
            if name == "begun":
                seed = end
                continue
            counts[kind, name, end] += 1
            if end not in GOOD:
                print(f"{kind}, seed {seed}: {name}: {end}\n{trace}", flush=True)
        worker.join()
        if worker.exitcode == 0:
            return
        if worker.exitcode == -signal.SIGALRM and seed not in late:  # the machine may have stood still: once more
            late.add(seed)
            seeds = range(seed, seeds.stop)
            continue
        end = "LATE" if worker.exitcode == -signal.SIGALRM else f"DIED {worker.exitcode}"
        counts[kind, "case", end] += 1
        print(f"{kind}, seed {seed}: {end}", flush=True)
        seeds = range(seed + 1, seeds.stop)


def received(connection: Connection) -> tuple[str, str, str] | None:
    try:
        message: tuple[str, str, str] = connection.recv()
    except EOFError:
        return None
    return message


def kill_9(seed: int, place: Path, counts: Counts) -> None:
    """Kill a run at random moments until one is left alone; it must end as the undisturbed one did."""
    draw, folder = random.Random(seed), place / f"victim-{seed}"
    for _ in range(draw.randint(1, 4)):
        victim = PROCESSES.Process(target=atoll.run, args=(VICTIM, folder), kwargs={"resume": True})
        victim.start()
        victim.join(draw.uniform(0.0, 0.5))
        counts["kills", "kill -9", "killed" if victim.is_alive() else "ended before"] += 1
        victim.kill()
        victim.join()
    end = "same" if fingerprint(atoll.run(VICTIM, folder, resume=True)) == WHOLE else "OTHER BITS"
    counts["kills", "run after kills", end] += 1
    shutil.rmtree(folder)


def interrupted(place: Path) -> None:
    """A run that ends in the middle of what it does, with a checkpoint behind it."""

    def watch(done: int, rounds: int, entry: object) -> None:
        if done == 11:
            shutil.copytree(place / "running", place / "half")

    atoll.run(VICTIM, place / "running", watch=watch)


def asked(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="kind", help="kills, cuts, experiments, files; fuzz: the last two")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--cases", type=int, help="Of each kind, however long that takes.")
    parser.add_argument("--seed", type=int, default=0, help="Of the first case; the next ones count on.")
    told = parser.parse_args(arguments)
    told.kinds = [k for kind in told.kinds or KINDS for k in (FUZZ if kind == "fuzz" else [kind])]
    if unknown := set(told.kinds) - set(KINDS):
        parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(KINDS)} and fuzz")
    return told


def soak(kinds: list[str], seed: int, minutes: float, cases: int | None, place: Path) -> Counts:
    """Batches of every kind in turn, until the cases or the minutes are over."""
    counts, end, stop = Counts(), time.monotonic() + 60 * minutes, math.inf if cases is None else seed + cases
    for first in itertools.count(seed, BATCH):
        seeds = range(first, int(min(first + BATCH, stop)))
        for kind in kinds:
            if kind == "kills":
                for one in seeds if cases else [first]:
                    kill_9(one, place, counts)
            else:
                in_children(kind, seeds, place, counts)
        if seeds.stop == stop or (cases is None and time.monotonic() >= end):
            return counts
    raise AssertionError("it counts without an end")


def summary(kind: str, counts: Counts) -> tuple[str, int]:
    """One line of a kind's counts, and its faults."""
    ends: Counter[str] = Counter()
    for (of, _, end), count in counts.items():
        ends[end] += count if of == kind else 0
    good = ", ".join(f"{ends[end]:,} {end}" for end in sorted(GOOD) if ends[end])
    kinds = ("RAW", "OURS", "DIED")
    raw, ours, died = (sum(n for end, n in ends.items() if end.startswith(word)) for word in kinds)
    faults = sum(n for end, n in ends.items() if end not in GOOD)
    other = f"{raw} raw errors, {ours} of ours called damage, {died} crashes, {faults - raw - ours - died} other faults"
    return f"{kind}: {ends.total():,} cases: {good}; {other}", faults


def main() -> int:
    told = asked()
    PROCESSES.set_forkserver_preload(["atoll.runs", "sklearn.datasets", "tests.support.mutated_files"])
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        atoll.run(VICTIM, place / "whole")
        interrupted(place)
        prepare(place)
        counts = soak(told.kinds, told.seed, told.minutes, told.cases, place)
    for (_, name, how), count in sorted(counts.items()):
        print(f"{count:7,}  {name}: {how}")
    lines = {kind: summary(kind, counts) for kind in told.kinds}
    print(f"seeds from {told.seed}", *(line for line, _ in lines.values()), sep="\n")
    return int(any(faults for _, faults in lines.values()))


if __name__ == "__main__":
    sys.exit(main())
