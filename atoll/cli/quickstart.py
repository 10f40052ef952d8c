"""The quickstart: three ways to learn from 20 unlike clients, three seeds each, one page."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from atoll.cli.common import console, followed, say
from atoll.experiment import Device, Experiment, override
from atoll.records import INTERRUPTED, RunFolder, ended
from atoll.runs import Run, run

ALGORITHMS: tuple[dict[str, Any], ...] = (
    {"name": "fedavg", "lr": 0.1},
    {"name": "fedprox", "lr": 0.1, "mu": 0.1},
    {"name": "local", "lr": 0.1},
)
SEEDS = (0, 1, 2)


def quickstart(out: Path, overrides: Sequence[str], device: Device, verbose: bool, another_rank: bool) -> list[Run]:
    """Run them all (what is already there is not run again), print the table, write the page."""
    import tomllib

    text = files("atoll.experiment").joinpath("quickstart.toml").read_text()
    console.print(
        "FedAvg, FedProx and local-only training on 20 clients with unlike shares of the digits, 3 seeds each."
    )
    raws = [{**tomllib.loads(text), "algorithm": a, "seed": seed} for a in ALGORITHMS for seed in SEEDS]
    experiments = [Experiment.parse(override(raw, overrides)) for raw in raws]
    _say_what_is_there([_folder(out, e) for e in experiments], out)
    done = []
    for experiment in experiments:
        done.append(_one(experiment, _folder(out, experiment), device, verbose))
        if done[-1].status == INTERRUPTED:
            return done
    if another_rank:  # than the one that writes
        return done
    from atoll.report import summary, write  # not before there is something to draw: it takes matplotlib

    folders = [r.folder for r in done]
    page = write(folders, Path("report.html"), title="Quickstart: digits on 20 unlike clients")
    console.print(summary(folders))
    example = out / "quickstart.toml"
    example.write_text(text)
    say(f"Report: {page}")
    say(f"Next:   change {example} and `atoll run {example}`.")
    return done


def _folder(out: Path, experiment: Experiment) -> Path:
    return out / f"{experiment.algorithm['name']}-{experiment.seed}-{experiment.digest()[:8]}"


def _say_what_is_there(folders: Sequence[Path], out: Path) -> None:
    there = [info for f in folders if RunFolder(f).exists() and ended(info := RunFolder(f).info)]
    if there:
        since = min(str(info["started"]) for info in there)
        whole = f"{len(there)} of {len(folders)} runs are in {out} already (since {since}) and are not run again"
        say(f"{whole}: their seconds are of then. To run all anew: --out with another folder.")


def _one(experiment: Experiment, folder: Path, device: Device, verbose: bool) -> Run:
    shown = followed(f"{experiment.algorithm['name']}, seed {experiment.seed}".ljust(16), verbose)
    resume = RunFolder(folder).exists()
    return run(experiment, folder, resume=resume, device=device, callbacks=[shown], progress=False)
