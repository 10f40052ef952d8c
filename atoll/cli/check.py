"""What would run, before it runs."""

from __future__ import annotations

import importlib
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from atoll import rng, tree
from atoll.engines import Scratch
from atoll.errors import ConfigError
from atoll.experiment import Experiment
from atoll.experiment.setup import Device, set_up
from atoll.records import RunFolder
from atoll.runs import Driver


def estimate(experiment: Experiment, device: Device, console: Console) -> None:
    """Build everything, time one round without keeping it, and print what a run would take."""
    setup = set_up(experiment, device)
    with tempfile.TemporaryDirectory() as scratch:
        driver = Driver(setup, RunFolder(Path(scratch)))
        seconds = _one_round(driver)
        cohort = driver.agenda.trial().cohort
        clients = len(cohort)
        traffic = driver.traffic(clients)
        steps = setup.population.steps(cohort.id)
        memory = tree.nbytes(driver.columns) + min(driver.chunk, clients) * driver.client_bytes
        rows = {
            "data": f"{setup.dataset.name}, {setup.training.indices.numel():,} training examples",
            "clients": f"{setup.training.size:,}, holding {_range(setup.training.sizes)} examples",
            "a round": f"{clients:,} clients, {_range(steps)} steps each",
            "model": f"{tree.count(setup.model['params']):,} parameters",
            "engine": f"{driver.engine.name} ({driver.engine.reason})",
            "memory": f"about {memory / 1e6:,.0f} MB ({min(driver.chunk, clients):,} clients at a time)",
            "time": f"about {seconds:.3g} s a round, {_minutes(seconds * experiment.rounds)} for all "
            f"{experiment.rounds} (without evaluation)",
            "bytes": f"{traffic['up'] / 1e6:,.3g} MB up and {traffic['down'] / 1e6:,.3g} MB down a round",
        }
        if driver.account is not None:
            rows["privacy"] = "; ".join(told.rstrip(".") for told in driver.account.foreseen(driver.agenda.template))
    table = Table(show_header=False, box=None)
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    for note in setup.notes:
        console.print(f"Note: {note}", markup=False, highlight=False)


def _one_round(driver: Driver) -> float:
    """Seconds of a round's training, the second of two; nothing of it is kept."""
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
        console.print(f"  passed: {passed}", markup=False, highlight=False)
    console.print(f"{name} does what an algorithm must.", markup=False, highlight=False)


def _range(values: object) -> str:
    low, high = int(values.min()), int(values.max())  # type: ignore[attr-defined]
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _minutes(seconds: float) -> str:
    if seconds < 9.95:
        return f"{seconds:.2g} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
