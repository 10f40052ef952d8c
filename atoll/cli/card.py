"""The `atoll card` command."""

from __future__ import annotations

import sys
import tomllib
from importlib.resources import files as package_files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.bench import parsed, workers
from atoll.cli.common import (
    Overrides,
    Quiet,
    Verdict,
    Where,
    console,
    errors,
    hushed,
    imports,
    retyped,
    retyped_overrides,
    say,
    say_how_to_resume,
)
from atoll.errors import ConfigError

if TYPE_CHECKING:
    from atoll.card import CardOptions, CardOutcome, CardPlan

QUICKSTART = (
    ("fedavg", {"name": "fedavg", "lr": 0.1}),
    ("fedprox", {"name": "fedprox", "lr": 0.1, "mu": 0.1}),
)


def card(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[EXPERIMENT]...", help="Experiments in TOML, side by side. Left out: the quickstart."),
    ] = None,
    set_: Overrides = None,
    metric: Verdict = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each condition; default: 3, or what fits.")] = None,
    rounds: Annotated[int | None, typer.Option(help="At most so many; default: as the files say.")] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="MINUTES", help="Seeds and rounds that fit: 5, or 90s, 30m, 2h.")
    ] = None,
    attacks: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Attacks on the model, with commas, or none; the worst counts.")
    ] = None,
    profile: Annotated[str, typer.Option(help="Rules of the scores: atoll, fedeval, fedeval-published.")] = "atoll",
    dcs: Annotated[bool, typer.Option("--dcs", help="Also VFLAIR's capability score of every attack.")] = False,
    target: Annotated[float | None, typer.Option(help="Of the metric, for costs; default: 90 % of the way.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Tasks at once; default: a core each, 1 on a GPU.")] = None,
    device: Where = "auto",
    out: Annotated[Path | None, typer.Option(help="The card's folder; default: runs/card/<names>.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run; run nothing.")] = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate methods on all axes: one page, a chart, JSON.

    Effectiveness, robustness, efficiency, privacy and fairness from the same runs, with intervals over seeds. What is
    done is never run again: the same command goes on.
    """
    with imports():
        from atoll.card import CardOptions, plan_card

    seconds = None if budget is None else minutes(budget)
    at_once = jobs or workers(device)
    options = CardOptions(seeds, rounds, seconds, names_of(attacks), profile, target, metric, at_once, device)
    sources = _sources(files)
    folder = out or Path("runs") / "card" / "-".join(name for name, _ in sources)
    plan = plan_card(sources, set_ or [], folder, options, dry=dry_run)
    if dry_run:
        _print_plan(plan, folder)
        return
    words = ["atoll", "card", *map(str, files or []), *retyped_overrides(set_), *retyped("--metric", metric)]
    words += [*retyped("--seeds", seeds), *retyped("--rounds", rounds), *retyped("--budget", budget)]
    words += [*retyped("--attacks", attacks), *retyped("--profile", profile, "atoll"), *(["--dcs"] if dcs else [])]
    words += [*retyped("--target", target), *retyped("--jobs", jobs), *retyped("--device", device, "auto")]
    with hushed(quiet):
        done = _run(plan, folder, options, " ".join(words))
        _print(done, folder, dcs)
    if done.interrupted:
        say_how_to_resume([*words, "--out", str(folder)])
        sys.exit(130)
    sys.exit(1 if done.card is None else 0)


def _sources(files: list[Path] | None) -> list[tuple[str, dict[str, Any]]]:
    from atoll.card import named_sources

    if files:
        return named_sources(files)
    raw = tomllib.loads(package_files("atoll.experiment").joinpath("quickstart.toml").read_text())
    return [(name, {**raw, "algorithm": algorithm}) for name, algorithm in QUICKSTART]


def _run(plan: CardPlan, folder: Path, options: CardOptions, command: str) -> CardOutcome:
    from atoll.card import run_card
    from atoll.suites import SuiteBar
    from atoll.suites.sweeps import CellLines

    title = f"Card: {', '.join(m.name for m in plan.methods)}"
    try:
        events = SuiteBar([], options.jobs, console) if console.is_terminal else CellLines(say)
        with events as bar:
            return run_card(plan, folder, options, title, bar, command)
    except KeyboardInterrupt:
        errors.print("Stopped at once. What was checkpointed is safe: the same command goes on.")
        sys.exit(130)


def _print(done: CardOutcome, folder: Path, dcs: bool) -> None:
    from atoll.card import lead, score_table, write
    from atoll.report import rich_table

    if done.card is None:
        late = (
            "The budget was used up before a method had a finished run" if done.late else "No method has a finished run"
        )
        say(f"{late}, so there is no card yet. The same command goes on.", "red", errors)
        for name, why in done.sweep.failed.items():
            say(f"  {name}: {why}", to=errors)
        return
    console.print(rich_table(score_table(done.card)))
    for line in (*lead(done.card), *done.card.left_out):
        say(line, wrap=True)
    for name, place in write(done.card, folder, dcs).items():
        say(f"{name.rpartition('.')[2].upper() + ':':<6}{place}")


def _print_plan(plan: CardPlan, folder: Path) -> None:
    from atoll.records import SweepFolder
    from atoll.report import counted

    place = SweepFolder(folder)
    for cell in plan.cells:
        say(f"{cell.name}: {cell.experiment.rounds} rounds, {place.done(cell) or 'to run'}")
    for why in sorted(set(plan.missing.values())):
        say(f"Not measured: {why}.")
    for line in plan.left_out:
        say(line)
    counts = counted(len(plan.cells), "run"), counted(plan.rounds, "round"), counted(len(plan.seeds), "seed")
    say(f"{counts[0]}, {counts[1]} in all, {counts[2]}. Folder: {folder}")


def names_of(attacks: str | None) -> tuple[str, ...]:
    """Names between commas; "none" for none.

    >>> names_of("alie, ipm"), names_of("none")
    (('alie', 'ipm'), ())
    """
    from atoll.card import WORST_OF

    if attacks is None:
        return WORST_OF
    return () if attacks == "none" else tuple(name.strip() for name in attacks.split(",") if name.strip())


def minutes(budget: str) -> float:
    """Seconds of a budget: a plain number is minutes.

    >>> minutes("5"), minutes("90s")
    (300.0, 90.0)
    """
    try:
        value = float(budget)
    except ValueError:
        return parsed(budget)
    if not value > 0:
        raise ConfigError(f"--budget: must be above 0 (got {budget!r}). Example: --budget 5, in minutes.")
    return value * 60
