"""First impressions: seconds until a command has answered, and until the quickstart is in its first round.

    python benchmarks/startup.py [--repeats 7]

Every number is the least of several fresh processes, after one that warms the disk. Processor seconds stand beside it:
other work on the machine adds to the first and hardly to the second.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

PRIVACY = "privacy epsilon --noise 2 --delta 1e-6 --rounds 100 --population 10000 --cohort 100 --sampling poisson"
COMMANDS = ("--help", "run --help", "version", "list algorithms", "list suites", "report nowhere", PRIVACY)
COUNT = "\nimport sys\nprint(len(sys.modules), 'torch' in sys.modules, file=sys.stderr)"
TYPED = """
import sys
from atoll.cli.main import main
sys.argv = ["atoll", *{words!r}]
try:
    main()
except SystemExit:
    pass"""


def timed(code: str) -> tuple[float, float, int, bool]:
    """Wall and processor seconds of a fresh process, the modules that it imported, and whether torch was among them."""
    before = os.times()
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code + COUNT], capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - began
    after = os.times()
    modules, torch = done.stderr.splitlines()[-1].split()
    worked = after.children_user + after.children_system - before.children_user - before.children_system
    return seconds, worked, int(modules), torch == "True"


def first_round(folder: Path) -> tuple[float, float]:
    """Seconds from the start of `atoll run` to the start of its first round, and those of a round, evaluation included.

    The record says how long the round took: so that is when its line was written, less that.
    """
    example = files("atoll.experiment").joinpath("quickstart.toml")
    began = time.time()
    command = [sys.executable, "-m", "atoll", "run", str(example), "--out", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
        record = folder / "record.jsonl"
        while running.poll() is None and not (record.exists() and record.stat().st_size):
            time.sleep(0.001)
        written = time.time()
    rounds = [sum(_seconds(line)) for line in record.read_text().splitlines()]
    return written - began - rounds[0], sorted(rounds)[len(rounds) // 2]


def _seconds(line: str) -> Sequence[float]:
    return [s for s in json.loads(line)["seconds"].values() if isinstance(s, float)]


def commands(scratch: Path) -> dict[str, list[str]]:
    """What is typed, by what the table calls it; a mistake and a page need a file and a run."""
    typo, run = scratch / "typo.toml", scratch / "run"
    text = files("atoll.experiment").joinpath("quickstart.toml").read_text()
    typo.write_text(text.replace("alpha", "alpah").replace("fedavg", "fedagv"))
    first_round(run)
    named = {f"`atoll {' '.join(words.split()[:2])}`": words.split() for words in COMMANDS}
    named["`atoll run` of a file with two mistakes"] = ["run", str(typo)]
    page = ["-o", str(scratch / "page.html")]
    named["`atoll report` of a run"] = ["report", str(run), *page]
    named["`atoll report` of ten runs, two settings"] = ["report", *ten_runs(scratch / "ten"), *page]
    return named


def ten_runs(folder: Path) -> list[str]:
    """Folders of two settings with five seeds each, two rounds long."""
    example = str(files("atoll.experiment").joinpath("quickstart.toml"))
    for mu in ("0.01", "1.0"):
        for seed in range(5):
            changes = ["rounds=2", f"seed={seed}", f"algorithm={{name='fedprox', lr=0.1, mu={mu}}}"]
            options = [word for change in changes for word in ("--set", change)]
            out = str(folder / f"{mu}-{seed}")
            command = [sys.executable, "-m", "atoll", "run", example, *options, "--out", out, "--quiet"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return sorted(map(str, folder.iterdir()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    print("| | seconds | processor seconds | modules | torch |\n|---|---|---|---|---|")
    rows = {"`import torch`, to compare": "import torch", "`import atoll`": "import atoll"}
    with tempfile.TemporaryDirectory() as scratch:
        rows |= {name: TYPED.format(words=words) for name, words in commands(Path(scratch)).items()}
        for name, code in rows.items():
            timed(code)
            tries = [timed(code) for _ in range(repeats)]
            wall, worked = min(t[0] for t in tries), min(t[1] for t in tries)
            print(f"| {name} | {wall:.2f} | {worked:.2f} | {tries[-1][2]:,} | {'yes' if tries[-1][3] else 'no'} |")
        found = [first_round(Path(scratch) / str(i)) for i in range(repeats)]
    print(f"\n`atoll run`, the quickstart's file: in its first round after {min(s for s, _ in found):.2f} s; ", end="")
    print(f"a round takes {1e3 * min(r for _, r in found):.1f} ms")


if __name__ == "__main__":
    main()
