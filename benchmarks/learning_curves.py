"""The curves of docs/topologies*.md and of docs/algorithms.md: the examples' files, means over seeds.

    python benchmarks/learning_curves.py [--seeds 3] [--only methods personal searched ...] [--out docs/topologies]

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
SUITES = Path(__file__).parents[1] / "atoll" / "suites" / "shipped"
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Curve:
    """One panel: rows of an example's file, each with settings of its own, and what is drawn of their records.

    What ends with " suite" is the base of a suite that comes with the package.
    """

    title: str
    example: str
    rows: Mapping[str, Settings]
    common: Settings
    y: tuple[str, ...]  # of a record's series
    y_label: str
    x: Callable[[Record], np.ndarray] | None = None  # rounds unless given
    x_label: str = "round"
    logarithmic: bool = False
    bottom: float | None = None  # what is below is not drawn
    without: tuple[str, ...] = ()  # rows that have no such number


def server_rounds(rounds: list[int]) -> Settings:
    return {"round": {**read("hierarchical")["round"], "rounds": rounds}}


def read(example: str) -> dict[str, Any]:
    if example.endswith(" suite"):
        base: dict[str, Any] = tomllib.loads((SUITES / f"{example.removesuffix(' suite')}.toml").read_text())["base"]
        return base
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
GRAPH = read("decentralised")["round"]["graph"]
METHODS: dict[str, Settings] = {
    **{name: {"round": {"name": name, "graph": GRAPH}} for name in ("gossip", "push_sum", "gradient_tracking", "d2")},
    "choco, top_k 0.1": {"round": {"name": "choco", "graph": GRAPH}},
    "choco, rand_k 0.1": {"round": {"name": "choco", "graph": GRAPH, "compressor": {"name": "rand_k", "share": 0.1}}},
    "epidemic, to 4": {"round": {"name": "epidemic", "fanout": 4}},
    "all_reduce": {"round": "all_reduce"},
}
UNLIKE = {"rounds": 60, "partition": {"name": "dirichlet", "clients": 16, "alpha": 0.1}, **EVERY_ROUND}
PERSONAL: dict[str, Settings] = {
    **tomllib.loads((SUITES / "personal.toml").read_text())["value"]["method"],
    "mimelite": {"algorithm": {"name": "mimelite", **OWN_RATE}},
    "fedgma": {"algorithm": {"name": "fedavg", **OWN_RATE}, "reducer": {"name": "fedgma", "threshold": 0.4}},
}
SHARED = tomllib.loads((SUITES / "personal.toml").read_text())["value"]["partition"]
OFTEN = {"evaluate": {"every": 4, "holdout": 0.25, "after": True}}
PICTURES: dict[str, list[Curve]] = {
    "methods": [
        Curve("the mean model", "decentralised", METHODS, UNLIKE, ("accuracy",), "test accuracy"),
        Curve(
            "how far apart nodes are",
            "decentralised",
            METHODS,
            UNLIKE,
            ("diagnostics", "consensus_distance"),
            "consensus distance",
            logarithmic=True,
            without=("all_reduce",),
        ),
    ],
    "personal": [
        Curve(
            name,
            "personal suite",
            PERSONAL,
            {**SHARED[name], **OFTEN},
            ("after", "accuracy", "mean"),
            "accuracy on own held-out data",
            bottom=0.6,
        )
        for name in ("classes(3)", "groups(4)")
    ],
    "searched": [
        Curve(
            "FedNAS",
            "fednas",
            {"searched": {}, "arch_lr = 0": {"algorithm": {**read("fednas")["algorithm"], "arch_lr": 0.0}}},
            {"rounds": 15, **EVERY_ROUND},
            ("accuracy",),
            "test accuracy",
        ),
        Curve(
            "FedGAN",
            "fedgan",
            {
                "two networks": {},
                "generator_lr = 0": {"algorithm": {"name": "fedgan", **OWN_RATE, "generator_lr": 0.0}},
            },
            {"rounds": 20, **EVERY_ROUND},
            ("accuracy",),
            "test accuracy of the discriminator",
        ),
        Curve(
            "FedGKT",
            "fedgkt",
            {
                "transfer": {},
                "weights of KL at 0": {
                    "algorithm": {**read("fedgkt")["algorithm"], "kl_weight": 0.0, "server_kl_weight": 0.0}
                },
            },
            {"rounds": 20, "evaluate": {"every": 1}},
            ("accuracy",),
            "mean test accuracy of clients' models",
        ),
        Curve(
            "FedMA, ten epochs a round",
            "fedma",
            {"matched": {}, "match = false": {"round": {"name": "fedma", "match": False}}},
            {"rounds": 10, "local": {"epochs": 10, "batch": 16}, **EVERY_ROUND},
            ("accuracy",),
            "test accuracy",
        ),
    ],
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
        folder = scratch / f"{curve.example} {curve.common.get('partition', '')} {row} {seed}".replace("/", " ")
        if not folder.exists():
            engine = {"engine": "vector", "checkpoint": {"every": 0}, "seed": seed}
            atoll.run({**read(curve.example), **curve.common, **engine, **curve.rows[row]}, folder, progress=False)
        found.extend(read_runs([folder]))
    return found


def draw(axes: Axes, curve: Curve, seeds: int, scratch: Path) -> None:
    for index, row in enumerate(curve.rows):
        if row in curve.without:
            continue
        runs = records(curve, row, seeds, scratch)
        rounds = runs[0].series(*curve.y).rounds
        values = np.stack([run.series(*curve.y).values for run in runs])
        x = rounds if curve.x is None else np.mean([curve.x(run)[rounds - 1] for run in runs], axis=0)
        style = "-" if index < 10 else "--"  # there are ten colours
        (line,) = axes.plot(x, values.mean(0), style, color=f"C{index % 10}", linewidth=1.3, label=row)
        if len(curve.rows) < 10:  # bands of more cover each other
            axes.fill_between(x, values.min(0), values.max(0), color=line.get_color(), alpha=0.15, linewidth=0)
        last = values[:, -1]
        by = 1 if curve.logarithmic else 100
        spread = last.std(ddof=1) if seeds > 1 else 0.0
        print(f"{curve.title}, {row}: {by * last.mean():.3g} ± {by * spread:.2g} at {x[-1]:.4g}", flush=True)
    axes.set_title(curve.title, fontsize=9)
    axes.set(xlabel=curve.x_label, ylabel=curve.y_label)
    axes.grid(alpha=0.3)
    axes.set_ylim(bottom=curve.bottom)
    if curve.logarithmic:
        axes.set_yscale("log")
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
