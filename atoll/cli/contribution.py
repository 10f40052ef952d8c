"""The `atoll contribution` command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from atoll.cli.common import Json, Overrides, Verdict, Where, console, errors, imports, say


def contribution(
    file: Annotated[Path, typer.Argument(help="An experiment in TOML.")],
    method: Annotated[
        Literal["loo", "tmc", "gtg", "exact"],
        typer.Option(
            help="loo: leave one out. tmc: sampled coalitions, trained. gtg: from the updates of one training. exact: "
            "all coalitions."
        ),
    ] = "gtg",
    set_: Overrides = None,
    metric: Verdict = None,
    seeds: Annotated[int, typer.Option(help="Repetitions: error bars over seeds.")] = 1,
    permutations: Annotated[int, typer.Option(help="Of tmc.")] = 20,
    tolerance: Annotated[float, typer.Option(help="Of the metric: who is so near to everybody adds nothing.")] = 0.01,
    device: Where = "auto",
    out: Annotated[Path | None, typer.Option(help="For trainings; default: runs/contribution/<file>.")] = None,
    json_: Json = None,
) -> None:
    """What does every client contribute to the model?

    Leave-one-out or Shapley's value, with error bars, and what it cost to find out. What was trained is never trained
    again.
    """
    with imports():
        from atoll.analysis.contribution import ContributionOptions, as_json_table, contribution_table
        from atoll.analysis.contribution import contribution as value
        from atoll.experiment import load
        from atoll.records import as_json, replace_text
        from atoll.report import rich_table
        from atoll.runs import live_progress

    options = ContributionOptions(method, seeds, permutations, tolerance, metric=metric, device=device)
    experiment = load(file, set_ or [])
    folder = out or Path("runs") / "contribution" / file.stem
    bar = live_progress(console)
    what = "rounds" if method == "gtg" else "coalitions"
    task = bar.add_task(what, total=experiment.rounds * seeds if method == "gtg" else None, seen="")
    try:
        with bar:
            found = value(experiment, folder, options, lambda count: bar.advance(task, count))
    except KeyboardInterrupt:
        errors.print("Stopped. What was trained stays: the same command goes on from there.")
        sys.exit(130)
    console.print(rich_table(contribution_table(found)))
    if json_ is not None:
        replace_text(json_, as_json(as_json_table(found), indent=1))
        say(f"JSON: {json_}")
