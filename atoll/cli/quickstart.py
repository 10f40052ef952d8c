"""The quickstart: three ways to learn from 20 unlike clients, three seeds each, one page."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.console import Console

from atoll.experiment import Device, Experiment, override
from atoll.records import INTERRUPTED, RunFolder
from atoll.runs import Bar, Run, run

ALGORITHMS: tuple[dict[str, Any], ...] = (
    {"name": "fedavg", "lr": 0.1},
    {"name": "fedprox", "lr": 0.1, "mu": 0.1},
    {"name": "local", "lr": 0.1},
)
SEEDS = (0, 1, 2)


def quickstart(console: Console, out: Path, overrides: Sequence[str], device: Device) -> list[Run]:
    """Run them all (what is already there is not run again), print the table, write the page."""
    import tomllib

    text = files("atoll.experiment").joinpath("quickstart.toml").read_text()
    console.print(
        "FedAvg, FedProx and local-only training on 20 clients with unlike shares of the digits, 3 seeds each."
    )
    done = []
    for algorithm in ALGORITHMS:
        for seed in SEEDS:
            raw = {**tomllib.loads(text), "algorithm": algorithm, "seed": seed}
            done.append(_one(Experiment.parse(override(raw, overrides)), out, device, console))
            if done[-1].status == INTERRUPTED:
                return done
    if console.quiet:  # another rank than the one that speaks and writes
        return done
    from atoll.report import summary, write  # not before there is something to draw: it takes matplotlib

    folders = [r.folder for r in done]
    page = write(folders, Path("report.html"), title="Quickstart: digits on 20 unlike clients")
    console.print(summary(folders))
    example = out / "quickstart.toml"
    example.write_text(text)
    console.print(f"Report: {page}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"Next:   change {example} and `atoll run {example}`.", markup=False, highlight=False, soft_wrap=True)
    return done


def _one(experiment: Experiment, out: Path, device: Device, console: Console) -> Run:
    label = f"{experiment.algorithm['name']}, seed {experiment.seed}"
    folder = out / f"{experiment.algorithm['name']}-{experiment.seed}-{experiment.digest()[:8]}"
    with Bar(f"{label:<16}", console) as bar:
        return run(experiment, folder, resume=RunFolder(folder).exists(), device=device, watch=bar)
