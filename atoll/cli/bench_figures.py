"""The figures of a suite, drawn by `atoll bench`: what updates leak, and cards of its methods."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from atoll.cli.common import Where, console, errors, say
from atoll.errors import ConfigError

if TYPE_CHECKING:
    from atoll.suites import CardFigure, LeakageFigure, Suite


def chosen_figures(suite: Suite, names: str | None, only: bool) -> list[str]:
    """All of the size; the named ones; none with "none", or where cells are named and no figures."""
    known = [f.name for f in suite.leakage] + [f.name for f in suite.cards]
    if names == "none" or (names is None and only):
        return []
    if names is None:
        return known
    asked = [name.strip() for name in names.split(",") if name.strip()]
    for name in asked:
        if name not in known:
            listed = f"Figures: {', '.join(known)}" if known else "It has none"
            raise ConfigError(f"--figures: {suite.name} has no {name!r} at the size {suite.size}. {listed}.")
    return asked


def print_figures(suite: Suite, names: Sequence[str], overrides: Sequence[str]) -> None:
    """What would be drawn; everything is checked."""
    from atoll.card import suite_sources
    from atoll.suites import planned

    for leak in (f for f in suite.leakage if f.name in names):
        say(f"Figure {leak.name}: {len(planned(leak, overrides))} attacks. {leak.title}")
    for card in (f for f in suite.cards if f.name in names):
        sources = suite_sources(suite, card, overrides)
        rules = ", ".join(card.profiles)
        say(f"Figure {card.name}: a card of {len(sources)} methods. Rules: {rules}. {card.title}")


def draw_figures(
    suite: Suite,
    names: Sequence[str],
    folder: Path,
    *,
    overrides: Sequence[str],
    device: Where,
    until: float | None,
    seeds: int | None,
    jobs: int,
) -> None:
    """One after the other, each in a folder of its own; what is done is not done again."""
    for leak in (f for f in suite.leakage if f.name in names):
        _leakage(leak, folder / leak.name, overrides, device, until)
    for card in (f for f in suite.cards if f.name in names):
        if until is not None and time.monotonic() >= until:
            say(f"Figure {card.name}: not begun, the budget is used up.")
            continue
        _card(suite, card, folder / card.name, overrides, device, seeds, jobs)


def _leakage(figure: LeakageFigure, folder: Path, overrides: Sequence[str], device: Where, until: float | None) -> None:
    from atoll.report import rich_table
    from atoll.suites import draw_leakage, figure_table

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(figure.name, total=None)
        drawn = draw_leakage(
            figure,
            folder,
            overrides,
            device,
            until,
            lambda what, n, of: bar.update(task, completed=n, total=of, description=f"{figure.name}: {what}"),
        )
    if drawn.rows:
        console.print(rich_table(figure_table(figure, drawn.rows)))
    for one in drawn.rows:
        if "refused" in one:
            say(f"Not done: {one['series']}, {one['attack']}: {one['refused']}")
    if drawn.left:
        say(f"Figure {figure.name}: {drawn.left} attacks are left; the same command with --resume goes on.")
    say(f"Figure {figure.name}: {drawn.page}")


def _card(
    suite: Suite,
    figure: CardFigure,
    folder: Path,
    overrides: Sequence[str],
    device: Where,
    seeds: int | None,
    jobs: int,
) -> None:
    from atoll.card import PROFILES, lead, plan_card, rescored, run_card, score_table, suite_card_options, suite_sources
    from atoll.card import write as write_card
    from atoll.report import rich_table
    from atoll.suites.sweeps import CellLines

    options = suite_card_options(suite, figure, seeds, jobs, device)
    plan = plan_card(suite_sources(suite, figure, overrides), [], folder, options)
    say(f"Figure {figure.name}: {len(plan.cells)} runs.")
    done = run_card(plan, folder, options, figure.title or figure.name, CellLines(say), f"atoll bench {suite.name}")
    if done.card is None:
        say(f"Figure {figure.name}: no method has a finished run yet; --resume goes on.", "red", errors)
        return
    for profile in figure.profiles:  # other rules of the same runs are in folders of their own
        card = rescored(done.card, PROFILES[profile])
        console.print(rich_table(score_table(card)))
        say(f"{profile}: {lead(card)[0]}", wrap=True)
        written = write_card(card, folder if profile == figure.profiles[0] else folder / profile, False)
        say(f"Figure {figure.name}: {next(iter(written.values()))}")
    for line in done.card.left_out:
        say(line, wrap=True)
