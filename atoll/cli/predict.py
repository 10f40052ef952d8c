"""The command `atoll predict`: a run's model on new rows."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.common import imports, say
from atoll.errors import ConfigError

if TYPE_CHECKING:
    from atoll.runs import Run


def predict(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    rows: Annotated[Path, typer.Argument(help="A CSV or Parquet file with the columns that the model was trained on.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="A CSV file; default: print the lines.")] = None,
    client: Annotated[
        str | None, typer.Option(help="Whose own model, by name or number, where the method has such.")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="The model of the best round, and not of the last.")] = False,
    module: Annotated[
        str | None, typer.Option(metavar="MODULE:CLASS", help="The network, where Python handed it to the run.")
    ] = None,
) -> None:
    """Predict new rows with the model of a run."""
    with imports():
        from atoll.runs import Run

    opened = Run(run)
    lines = _lines(opened, partial(opened.predict, rows, client=client, module=module, best=best))
    if out is None:
        csv.writer(sys.stdout, lineterminator="\n").writerows(lines)
        return
    if not out.parent.is_dir():
        raise ConfigError(f"--out: there is no folder {out.parent}. Make it first.")
    with out.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows(lines)
    say(f"{len(lines) - 1:,} predictions: {out}")


def _lines(run: Run, predict: Callable[..., Any]) -> list[list[object]]:
    answers = predict()
    if run.inputs.kind == "regression":
        return [["prediction"], *([answer] for answer in answers.tolist())]
    names = run.inputs.classes or tuple(map(str, range(run.inputs.outputs)))
    shares = predict(probabilities=True).tolist()
    body = [[answer, *(f"{p:.6g}" for p in share)] for answer, share in zip(answers.tolist(), shares, strict=True)]
    return [["prediction", *(f"p({name})" for name in names)], *body]
