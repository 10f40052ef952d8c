"""The commands `atoll report` and `atoll leaderboard`: pages of what is finished."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.common import console, imports, say
from atoll.errors import ConfigError


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs or sweeps; or one suite's folder, or its results.json.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="The page; default: report.html here, of one sweep or suite in its folder."),
    ] = None,
    figures: Annotated[
        list[str] | None, typer.Option(help="Also write each figure as png or pdf; may be repeated.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="The page's title.")] = None,
    table: Annotated[
        list[Path] | None, typer.Option(help="Also write the table: a .md, .tex or .csv file; may be repeated.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="What leads tables and figures; default: what the runs say.")
    ] = None,
) -> None:
    """Put runs side by side on one page that opens offline.

    A sweep stands for its runs; of a suite the page is drawn again.
    """
    with imports():
        from atoll.records import REPORT, all_runs_at, is_run, is_sweep

    wrong = sorted(set(figures or []) - {"png", "pdf"})
    if wrong:
        raise ConfigError(f"--figures: {wrong[0]!r} is not known. Use png or pdf.")
    if any(map(_is_suite, runs)):
        _report_suite(runs, out, figures or [], title)
        return
    folders = all_runs_at(runs)
    with imports():
        from atoll.report import load_matplotlib, summary, write, write_table

        if all(map(is_run, folders)):  # there will be something to draw
            load_matplotlib()

    usual = runs[0] / REPORT if len(runs) == 1 and is_sweep(runs[0]) else Path(REPORT)
    page = write(folders, out or usual, figures or [], title, metric)  # type: ignore[arg-type]
    console.print(summary(folders, metric))
    say(f"Report: {page}")
    for path in table or []:
        say(f"Table:  {write_table(folders, path, metric)}")


def leaderboard(
    results: Annotated[list[Path], typer.Argument(help="Suites' folders, or their results.json.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path("leaderboard.html"),
) -> None:
    """Put many suites on one page, with average ranks.

    Who leads each row, by how much, and how methods rank over all of them.
    """
    from atoll.records import read_results
    from atoll.report.suite import leaderboard as write

    say(f"Leaderboard: {write([read_results(path) for path in results], out)}")


def _is_suite(path: Path) -> bool:
    """Does it hold a suite's results?"""
    from atoll.records import is_results

    return is_results(path)


def _report_suite(paths: list[Path], out: Path | None, figures: list[str], title: str | None) -> None:
    from dataclasses import replace

    from atoll.records import read_results
    from atoll.report.suite import write, write_page

    _check_one_suite(paths, figures)
    results = read_results(paths[0])
    results = replace(results, title=title) if title else results
    folder = paths[0] if paths[0].is_dir() else paths[0].parent
    say(f"Report: {write_page(results, out) if out else write(results, folder)}")


def _check_one_suite(paths: list[Path], figures: list[str]) -> None:
    runs = [path for path in paths if not _is_suite(path)]
    if runs:
        suite = next(path for path in paths if path not in runs)
        raise ConfigError(f"report: {runs[0]} is a run and {suite} a suite. Report on each by itself.")
    if len(paths) > 1:
        raise ConfigError(f"report: takes one suite at a time (got {len(paths)}). For many: atoll leaderboard.")
    if figures:
        raise ConfigError(
            "--figures: is for runs. Of a suite name the cells: atoll report <folder>/cells/* --figures pdf."
        )
