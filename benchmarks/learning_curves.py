"""The curves of docs/topologies-hierarchical.md, -clusters.md and -models.md: the examples' files, means over seeds.

    python benchmarks/learning_curves.py [--seeds 3] [--only hierarchical clusters models] [--out docs/topologies]

A band is the smallest and the largest of the seeds. Prints what every row reaches at its last round.
"""

from __future__ import annotations

import argparse
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import atoll
from atoll.records import Record, read_runs

EXAMPLES = Path(__file__).parents[1] / "examples"
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Curve:
    """One panel: rows of an example's file, each with settings of its own, and what is drawn of their records."""

    title: str
    example: str
    rows: Mapping[str, Settings]
    common: Settings
    y: tuple[str, ...]  # of a record's series
    y_label: str
    x: Callable[[Record], np.ndarray] | None = None  # rounds unless given
    x_label: str = "round"


def server_rounds(rounds: list[int]) -> Settings:
    return {"round": {**read("hierarchical")["round"], "rounds": rounds}}


def read(example: str) -> dict[str, Any]:
    return tomllib.loads((EXAMPLES / f"{example}.toml").read_text())


def server_megabytes(record: Record) -> np.ndarray:
    """Both ways, at the server alone: of the last level, or of all clients where there is no other."""
    totals = []
    for line in record.rounds:
        levels = line.get("diagnostics", {}).get("traffic", {"clients": line["bytes"]})
        last = list(levels.values())[-1]
        totals.append(last["up"] + last["down"])
    return np.cumsum(totals) / 1e6


OWN_RATE = {"lr": 0.1}
CENTRAL = {"round": "central", "cohort": {"name": "fixed", "size": 50}}
EDGES = {"central, 50 phones": CENTRAL, **{f"rounds = {r}": server_rounds(r) for r in ([1, 1], [2, 1], [4, 1], [4, 2])}}
EVERY_ROUND = {"evaluate": {"every": 1, "clients": 0}}
PICTURES: dict[str, list[Curve]] = {
    "hierarchical": [
        Curve("by the server's rounds", "hierarchical", EDGES, EVERY_ROUND, ("accuracy",), "test accuracy"),
        Curve(
            "by what crosses the server's links",
            "hierarchical",
            EDGES,
            EVERY_ROUND,
            ("accuracy",),
            "test accuracy",
            server_megabytes,
            "MB at the server, both ways",
        ),
    ],
    "clusters": [
        Curve(
            "four groups of clients",
            "ifca",
            {
                "FedAvg": {"round": "central"},
                "ifca": {"round": {"name": "ifca", "clusters": 4}},
                "hypcluster": {"round": {"name": "hypcluster", "clusters": 4}},
                "clustered_fl": {
                    "round": {"name": "clustered_fl", "clusters": 4, "mean_below": 0.25, "largest_above": 0.4}
                },
                "cyclic, 4 rings": {"round": {"name": "cyclic", "rings": 4}},
                "ring": {"round": "ring"},
                "one_shot": {"round": "one_shot"},
            },
            {"evaluate": {"every": 2, "holdout": 0.25}},
            ("clients", "accuracy", "mean"),
            "accuracy on clients' own held-out data",
        )
    ],
    "models": [
        Curve(
            "HeteroFL",
            "heterofl",
            {
                "widths 1, 1/2, 1/4": {},
                "FedAvg, width 1": {"algorithm": {"name": "fedavg", **OWN_RATE}},
                "FedAvg, width 1/4": {
                    "algorithm": {"name": "fedavg", **OWN_RATE},
                    "task": {"model": {"name": "mlp", "widths": [16]}},
                },
            },
            {"rounds": 30, **EVERY_ROUND},
            ("accuracy",),
            "test accuracy",
        ),
        Curve(
            "FedMD, three widths",
            "fedmd",
            {"digest": {}, "alone": {"algorithm": {**read("fedmd")["algorithm"], "digest_lr": 0.0}}},
            {"rounds": 30, "evaluate": {"every": 1}},
            ("accuracy",),
            "mean test accuracy of clients' models",
        ),
        Curve(
            "FedDF, Dirichlet(0.05)",
            "feddf",
            {"distilled": {}, "steps = 0": {"algorithm": {**read("feddf")["algorithm"], "steps": 0}}},
            {"rounds": 20, **EVERY_ROUND},
            ("accuracy",),
            "test accuracy",
        ),
        Curve(
            "pseudo-labels, a tenth has labels",
            "pseudo_labels",
            {
                "weight 0.1": {},
                "weight 0": {"algorithm": {**read("pseudo_labels")["algorithm"], "unlabelled_weight": 0.0}},
            },
            {"rounds": 30, **EVERY_ROUND},
            ("accuracy",),
            "test accuracy",
        ),
    ],
}


def records(curve: Curve, row: str, seeds: int, scratch: Path) -> list[Record]:
    """Of every seed; two panels with the same rows share their runs."""
    found = []
    for seed in range(seeds):
        folder = scratch / f"{curve.example} {row} {seed}"
        if not folder.exists():
            engine = {"engine": "vector", "checkpoint": {"every": 0}, "seed": seed}
            atoll.run({**read(curve.example), **curve.common, **engine, **curve.rows[row]}, folder, progress=False)
        found.extend(read_runs([folder]))
    return found


def draw(axes: Axes, curve: Curve, seeds: int, scratch: Path) -> None:
    for row in curve.rows:
        runs = records(curve, row, seeds, scratch)
        rounds = runs[0].series(*curve.y).rounds
        values = np.stack([run.series(*curve.y).values for run in runs])
        x = rounds if curve.x is None else np.mean([curve.x(run)[rounds - 1] for run in runs], axis=0)
        (line,) = axes.plot(x, values.mean(0), linewidth=1.3, label=row)
        axes.fill_between(x, values.min(0), values.max(0), color=line.get_color(), alpha=0.15, linewidth=0)
        last = values[:, -1]
        print(f"{curve.example}, {row}: {100 * last.mean():.1f} ± {100 * last.std(ddof=1):.1f} at {x[-1]:.4g}")
    axes.set_title(curve.title, fontsize=9)
    axes.set(xlabel=curve.x_label, ylabel=curve.y_label)
    axes.grid(alpha=0.3)
    if curve.x is not None:
        axes.set_xscale("log")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=PICTURES, default=list(PICTURES))
    parser.add_argument("--out", type=Path, default=Path("docs/topologies"))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in asked.only:
        curves = PICTURES[name]
        lines, columns = -(-len(curves) // 2), min(2, len(curves))
        figure = Figure(figsize=(8, 3.4 * lines) if columns > 1 else (6.4, 3.6), layout="constrained")
        with tempfile.TemporaryDirectory() as scratch:
            for axes, curve in zip(np.ravel(figure.subplots(lines, columns)), curves, strict=True):
                draw(axes, curve, asked.seeds, Path(scratch))
                if len({one.example for one in curves}) == len(curves):
                    axes.legend(fontsize=7, frameon=False)
        if len({one.example for one in curves}) < len(curves):  # the same rows in every panel
            handles, labels = figure.axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=7.5, frameon=False)
        figure.savefig(asked.out / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main()
