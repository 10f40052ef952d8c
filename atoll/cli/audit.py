"""The `atoll audit` command: membership attacks on a finished run."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from atoll.errors import RecordError

console = Console()
errors = Console(stderr=True)


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
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute.")] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Where audit.json and the runs of lira go; default: the run's folder.")
    ] = None,
) -> None:
    """Attack a finished run: can its model tell who was in the data? Prints a table and writes audit.json."""
    from atoll.attacks.membership import audit as audit_
    from atoll.records import audit_path

    if run.is_file():
        raise RecordError(f"{run}: is not a run (it is a file). Name the folder of a run.")
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:.1f}/{task.total} runs"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )
    rows: dict[str, TaskID] = {}

    def told(level: str, done: float, runs: int) -> None:
        if level not in rows:
            bar.start()
            rows[level] = bar.add_task(f"targets and shadows, {level}s", total=runs)
        bar.update(rows[level], completed=done)

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
            told=told,
        )
    except KeyboardInterrupt:
        errors.print("Stopped. What is done stays: the same command goes on from there.")
        sys.exit(130)
    finally:
        bar.stop()
    _print(found)
    console.print(f"Audit: {audit_path(out or run)}", markup=False, highlight=False, soft_wrap=True)


def _print(found: dict[str, Any]) -> None:
    attacks = found["attacks"]
    table = Table("", *(f"{a['name']}, {a['level']}" for a in attacks), title="Membership", title_justify="left")
    table.add_row("members, others", *(f"{a['members']:,}, {a['others']:,}" for a in attacks))
    table.add_row("AUC", *(_with(a["auc"], a["auc_interval"]) for a in attacks))
    for rate, name in (("0.01", "1 %"), ("0.001", "0.1 %")):
        shown = (_with(a["tpr_at_fpr"][rate], a["tpr_intervals"][rate]) for a in attacks)
        table.add_row(f"TPR at FPR {name}", *shown)
    table.add_row("advantage", *(_with(a["advantage"], a["advantage_interval"]) for a in attacks))
    table.add_row("epsilon at least", *(_epsilon(a["epsilon_lower"], a["delta"], math.floor) for a in attacks))
    table.add_row("epsilon accounted", *(_accounted(a["accounted"]) for a in attacks))
    console.print(table)
    sure = sorted({f"{a['confidence']:.0%}" for a in attacks})
    _say(f"Intervals and bounds have a confidence of {' or '.join(sure)}, each for itself.")
    for known in found["accounted"]:
        facts = (str(known[k]) for k in ("adjacency", "sampler", "mechanism", "accountant") if k in known)
        _say(f"Accounted, {known['unit']}-level: epsilon {_accounted(known)}: {'; '.join(facts)}.")
    for a in attacks:
        _say(f"{a['name'].capitalize()}, {a['level']}: {a['note']}.")
        if a.get("exceeds"):
            text = f"Warning: {a['name']}, {a['level']}: epsilon is at least {a['epsilon_lower']:.3f}, but "
            text += f"{a['accounted']['epsilon']:.3f} is accounted. The guarantee does not hold, or members and others "
            text += "are not drawn alike."
            console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
    for one in found["skipped"]:
        _say(f"Not done: {one['attack']}: {one['why']}")


def _accounted(known: dict[str, Any] | None) -> str:
    return "none" if known is None else _epsilon(known["epsilon"], known["delta"], math.ceil)


def _epsilon(value: float, delta: float, rounded: Callable[[float], int]) -> str:
    """A lower bound is rounded down, an upper one up."""
    return f"{rounded(value * 1e3) / 1e3:.3f} (delta {delta:.2g})"


def _with(value: float, interval: list[float]) -> str:
    return f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
