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

from atoll.cli.common import Overrides, Where, console, imports, say
from atoll.errors import ConfigError

if TYPE_CHECKING:
    from atoll.experiment import Experiment
    from atoll.experiment.setup import Setup
    from atoll.runs import Driver


def check(
    target: Annotated[
        str, typer.Argument(help="An experiment in TOML, or an algorithm such as my_lab.algorithms:Mine.")
    ],
    set_: Overrides = None,
    device: Where = "auto",
) -> None:
    """Say what would run: parameters, clients, steps, memory, time and bytes per round. Nothing is written."""
    if ":" in target and not Path(target).exists():
        check_import(target, console)
        return
    with imports():
        from atoll.experiment import load

    estimate(load(target, set_ or []), device, console)


def estimate(experiment: Experiment, device: Where, console: Console) -> None:
    """Build everything, time one round without keeping it, and print what a run would take."""
    from atoll.experiment.setup import set_up
    from atoll.runs import Driver, Folder

    setup = set_up(experiment, device)
    with tempfile.TemporaryDirectory() as scratch:
        driver = Driver(setup, Folder(Path(scratch)))
        facts = _facts(setup, driver, _one_round(driver))
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        table.add_row(name, value)
    console.print(table)
    for note in setup.notes:
        say(f"Note: {note}", to=console, wrap=True)


def _facts(setup: Setup, driver: Driver, seconds: float) -> dict[str, str]:
    from atoll import tree

    rounds, cohort = setup.experiment.rounds, driver.agenda.trial().cohort
    clients = len(cohort)
    traffic = driver.traffic(clients)
    memory = tree.nbytes(driver.columns) + min(driver.chunk, clients) * driver.client_bytes
    whole = f"{_minutes(seconds * rounds)} for all {rounds} (without evaluation)"
    facts = {
        "data": f"{setup.dataset.name}, {setup.training.indices.numel():,} training examples",
        "clients": f"{setup.training.size:,}, holding {_range(setup.training.sizes)} examples",
        "a round": f"{clients:,} clients, {_range(setup.population.steps(cohort.id))} steps each",
        "model": f"{tree.count(setup.model['params']):,} parameters",
        "engine": f"{driver.engine.name} ({driver.engine.reason})",
        "memory": f"about {memory / 1e6:,.0f} MB ({min(driver.chunk, clients):,} clients at a time)",
        "time": f"about {seconds:.3g} s a round, {whole}",
        "bytes": f"{traffic['up'] / 1e6:,.3g} MB up and {traffic['down'] / 1e6:,.3g} MB down a round",
    }
    if driver.account is not None:
        facts["privacy"] = "; ".join(told.rstrip(".") for told in driver.account.foreseen(driver.agenda.template))
    return facts


def _one_round(driver: Driver) -> float:
    """Seconds of a round's training, the second of two; nothing of it is kept."""
    from atoll import rng
    from atoll.engines import Scratch

    job = driver.agenda.trial()
    job = replace(job, memory=Scratch(job.memory), key=rng.key("estimate"))
    driver.engine.run(job)
    before = time.perf_counter()
    driver.engine.run(job)
    return time.perf_counter() - before


def check_import(target: str, console: Console) -> None:
    """Put a stranger's algorithm through the conformance kit."""
    module, _, name = target.partition(":")
    try:
        builder = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as e:
        raise ConfigError(f"{target}: cannot be imported ({e}). Is it installed, or is PYTHONPATH set?") from e
    from atoll.testing import check_algorithm

    for passed in check_algorithm(builder):
        say(f"  passed: {passed}", to=console, wrap=True)
    say(f"{name} does what an algorithm must.", to=console, wrap=True)


def _range(values: object) -> str:
    low, high = int(values.min()), int(values.max())  # type: ignore[attr-defined]
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _minutes(seconds: float) -> str:
    if seconds < 9.95:
        return f"{seconds:.2g} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
