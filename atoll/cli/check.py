"""The `atoll check` command: what would run, before it runs."""

from __future__ import annotations

import importlib
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from atoll.cli.common import Overrides, Where, console, say
from atoll.cli.remembered import load
from atoll.errors import ConfigError

if TYPE_CHECKING:
    from atoll.core import Outcome, Train
    from atoll.experiment import Experiment
    from atoll.runs import RunLoop


def check(
    target: Annotated[
        str, typer.Argument(help="An experiment in TOML, or code of your own such as my_lab.algorithms:Mine.")
    ],
    set_: Overrides = None,
    device: Where = "auto",
) -> None:
    """Say what would run, and what it would take.

    Parameters, clients, steps, memory, time and bytes per round. Nothing is written.
    """
    if ":" in target and not Path(target).exists():
        check_import(target, set_ or [], console)
        return
    estimate(load(target, set_ or []), device, console)


def estimate(experiment: Experiment, device: Where, console: Console) -> None:
    """Build everything, time one round without keeping it, and print what a run would take."""
    from atoll.experiment import set_up
    from atoll.records import RunFolder
    from atoll.runs import RunLoop

    setup = set_up(experiment, device)
    with tempfile.TemporaryDirectory() as scratch:
        facts = _facts(RunLoop(setup, RunFolder(Path(scratch))))
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        table.add_row(name, value)
    console.print(table)
    for note in setup.notes:
        say(f"Note: {note}", to=console, wrap=True)


def _facts(loop: RunLoop) -> dict[str, str]:
    from atoll import tree
    from atoll.runs import virtual_time

    loop.begin()
    setup, trial = loop.setup, loop.plan.trial(loop.state.round)
    seconds, outcome = _one_round(loop, trial)
    rounds, clients = setup.experiment.rounds, len(trial.ids)
    chunk = min(loop.place.chunk, clients)
    base = setup.task.base()
    memory = tree.nbytes(loop.columns) + sum(x.nbytes for x in setup.task.shared()) + chunk * loop.place.client_bytes
    whole = f"{_minutes(seconds * rounds)} for all {rounds} (without evaluation)"
    facts = {
        "data": f"{setup.dataset.name}, {setup.training.indices.numel():,} training examples",
        "clients": f"{setup.training.size:,}, holding {_range(setup.training.sizes)} examples",
        "a round": f"{clients:,} clients, {_range(setup.population.steps(trial.ids))} steps each",
        "model": f"{tree.count(setup.model['params']):,} parameters"
        + (f", beside {tree.count(base):,} frozen ones that clients share" if base else ""),
        "engine": f"{loop.engine.name} ({'; '.join(loop.engine.notes)})",
        "memory": f"about {memory / 1e6:,.0f} MB ({chunk:,} clients at a time)",
        "time": f"about {seconds:.3g} s a round, {whole}",
        "bytes": _bytes(loop, outcome),
    }
    if setup.attack is not None:
        facts["attack"] = f"{setup.attack.sentence()} ({_named(setup.attack.ids.tolist())})"
    if outcome.timeline is not None:
        facts["clock"] = virtual_time(setup, outcome.timeline, loop.state.round).sentence()
    for listener in loop.listeners:
        facts[listener.key] = "; ".join(said.rstrip(".") for said in listener.forecast())
    return facts


def _bytes(loop: RunLoop, outcome: Outcome) -> str:
    rounds, first, ctx = loop.setup.experiment.rounds, outcome.bytes(), loop.plan.context(0)
    given = ctx, loop.state.round, outcome, lambda number: loop.plan.sample(number)[0]
    total = loop.setup.round.total_bytes(*given, rounds)
    varies = loop.setup.round.lengths_vary(ctx, loop.state.round)
    alike = not varies and all(total[way] == n * rounds for way, n in first.items())
    return (
        f"{first['up'] / 1e6:,.3g} MB up and {first['down'] / 1e6:,.3g} MB down "
        f"{'a round' if alike else 'in the first round'}, {'at most ' if varies else ''}"
        f"{total['up'] / 1e6:,.3g} and {total['down'] / 1e6:,.3g} MB for all {rounds}"
    )


def _one_round(loop: RunLoop, trial: Train) -> tuple[float, Outcome]:
    """Seconds of a round, the second of two, and what it says of itself; nothing of it is kept."""
    from atoll import rng
    from atoll.runs import drive, on_promises

    pool = trial.ids if loop.setup.round.most_at_once(len(drawn := loop.plan.sample(0)[0])) == len(drawn) else drawn
    ctx = replace(loop.plan.context(0), sample=lambda: (pool, loop.setup.participation))
    for _ in range(2):
        before = time.perf_counter()
        game = on_promises(lambda: loop.setup.round.run(ctx, loop.state.round, rng.key("estimate")))
        _, outcome = drive(game, loop.engine)
    return time.perf_counter() - before, outcome


def check_import(target: str, overrides: list[str], console: Console) -> None:
    """Put a stranger's algorithm, transform, partition ... through the conformance kit. `--set` gives its options."""
    module, _, name = target.partition(":")
    try:
        builder = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as e:
        raise ConfigError(
            f"{target}: cannot be imported ({e}). "
            "Install it, work in the folder that it lies in, or name that in PYTHONPATH."
        ) from e
    from atoll.errors import ConformanceError
    from atoll.experiment import override
    from atoll.testing import check_anything

    try:
        kind, names = check_anything(builder, override({}, overrides))
    except ConfigError as e:
        raise ConfigError([f"{target}: {problem}" for problem in e.problems]) from e
    except (AttributeError, NotImplementedError) as e:  # a hook that is not there
        raise ConformanceError(f"{target}: has every hook: {e}. Derive it from its contract in atoll.core.") from e
    for passed in names:
        say(f"  passed: {passed}", to=console, wrap=True)
    say(f"{name} does what {kind} must.", to=console, wrap=True)


def _named(clients: list[int]) -> str:
    """The first few."""
    return f"clients {', '.join(map(str, clients[:12]))}{', ...' if len(clients) > 12 else ''}"


def _range(values: object) -> str:
    low, high = int(values.min()), int(values.max())  # type: ignore[attr-defined]
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _minutes(seconds: float) -> str:
    if seconds < 9.95:
        return f"{seconds:.2g} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
