"""The `atoll audit` command: membership attacks on a finished run."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from atoll.cli.common import Where, console, errors, imports, say
from atoll.errors import RecordError


def audit(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    attack: Annotated[
        Literal["loss", "lira", "all"],
        typer.Option(help="loss: a threshold on the run's own model. lira: likelihood ratios from runs on halves."),
    ] = "all",
    level: Annotated[Literal["example", "client", "both"], typer.Option(help="Whose membership.")] = "both",
    shadows: Annotated[int, typer.Option(help="Shadow runs of lira: an even number.")] = 16,
    targets: Annotated[int, typer.Option(help="Target runs of lira: more of them, more to count.")] = 1,
    delta: Annotated[float | None, typer.Option(help="Default: the accounted one, or a tenth of 1 / units.")] = None,
    confidence: Annotated[float, typer.Option(help="Of every interval and bound.")] = 0.95,
    device: Where = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Where audit.json and the runs of lira go; default: the run's folder.")
    ] = None,
) -> None:
    """Attack a finished run: who was in its data?

    Can its model tell? Prints a table and writes audit.json.
    """
    with imports():
        from atoll.attacks.membership import audit as audit_
        from atoll.records import audit_path

    if run.is_file():
        raise RecordError(f"{run}: is not a run (it is a file). Name the folder of a run.")
    bars = _Bars()
    try:
        found = audit_(
            run,
            attack,
            level,
            shadows=shadows,
            targets=targets,
            delta=delta,
            confidence=confidence,
            out=out,
            device=device,
            told=bars,
        )
    except KeyboardInterrupt:
        errors.print("Stopped. What is done stays: the same command goes on from there.")
        sys.exit(130)
    finally:
        bars.progress.stop()
    _print(found)
    say(f"Audit: {audit_path(out or run)}")


class _Bars:
    """Targets and shadow runs, a bar for each level; there is none before the first run."""

    def __init__(self) -> None:
        done = TextColumn("{task.completed:.1f}/{task.total} runs")
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), done, TimeElapsedColumn())
        self.progress = Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console)
        self.rows: dict[str, TaskID] = {}

    def __call__(self, level: str, done: float, runs: int) -> None:
        if level not in self.rows:
            self.progress.start()
            self.rows[level] = self.progress.add_task(f"targets and shadows, {level}s", total=runs)
        self.progress.update(self.rows[level], completed=done)


def _print(found: dict[str, Any]) -> None:
    attacks = found["attacks"]
    console.print(_table(attacks))
    sure = sorted({f"{a['confidence']:.0%}" for a in attacks})
    say(f"Intervals and bounds have a confidence of {' or '.join(sure)}, each for itself.")
    for known in found["accounted"]:
        facts = (str(known[k]) for k in ("adjacency", "sampler", "mechanism", "accountant") if k in known)
        say(f"Accounted, {known['unit']}-level: epsilon {_accounted(known)}: {'; '.join(facts)}.")
    for a in attacks:
        say(f"{a['name'].capitalize()}, {a['level']}: {a['note']}.")
        if a.get("exceeds"):
            say(_contradicted(a), "red")
    for one in found["skipped"]:
        say(f"Not done: {one['attack']}: {one['why']}")


def _table(attacks: list[dict[str, Any]]) -> Table:
    table = Table("", *(f"{a['name']}, {a['level']}" for a in attacks), title="Membership", title_justify="left")
    table.add_row("members, others", *(f"{a['members']:,}, {a['others']:,}" for a in attacks))
    table.add_row("AUC", *(_with(a["auc"], a["auc_interval"]) for a in attacks))
    for rate, name in (("0.01", "1 %"), ("0.001", "0.1 %")):
        shown = (_with(a["tpr_at_fpr"][rate], a["tpr_intervals"][rate]) for a in attacks)
        table.add_row(f"TPR at FPR {name}", *shown)
    table.add_row("advantage", *(_with(a["advantage"], a["advantage_interval"]) for a in attacks))
    table.add_row("epsilon at least", *(_epsilon(a["epsilon_lower"], a["delta"], math.floor) for a in attacks))
    table.add_row("epsilon accounted", *(_accounted(a["accounted"]) for a in attacks))
    return table


def _contradicted(attack: dict[str, Any]) -> str:
    return (
        f"Warning: {attack['name']}, {attack['level']}: epsilon is at least {attack['epsilon_lower']:.3f}, but "
        f"{attack['accounted']['epsilon']:.3f} is accounted. The guarantee does not hold, or members and others "
        "are not drawn alike."
    )


def _accounted(known: dict[str, Any] | None) -> str:
    return "none" if known is None else _epsilon(known["epsilon"], known["delta"], math.ceil)


def _epsilon(value: float, delta: float, rounded: Callable[[float], int]) -> str:
    """A lower bound is rounded down, an upper one up."""
    return f"{rounded(value * 1e3) / 1e3:.3f} (delta {delta:.2g})"


def _with(value: float, interval: list[float]) -> str:
    return f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"
