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
from atoll.core import Traffic, Train
from atoll.errors import ConfigError
from atoll.experiment import Experiment
from atoll.experiment.setup import Device, set_up
from atoll.records import RunFolder
from atoll.runs import RunLoop, drive, on_promises


def estimate(experiment: Experiment, device: Device, console: Console) -> None:
    """Build everything, time one round without keeping it, and print what a run would take."""
    setup = set_up(experiment, device)
    with tempfile.TemporaryDirectory() as scratch:
        loop = RunLoop(setup, RunFolder(Path(scratch)))
        trial = loop.plan.trial(loop.state.round)
        seconds, traffic = _one_round(loop, trial)
        clients, chunk = len(trial.ids), min(loop.place.chunk, len(trial.ids))
        steps = setup.population.steps(trial.ids)
        memory = tree.nbytes(loop.columns) + chunk * loop.place.client_bytes
        rows = {
            "data": f"{setup.dataset.name}, {setup.training.indices.numel():,} training examples",
            "clients": f"{setup.training.size:,}, holding {_range(setup.training.sizes)} examples",
            "a round": f"{clients:,} clients, {_range(steps)} steps each",
            "model": f"{tree.count(setup.model['params']):,} parameters",
            "engine": f"{loop.engine.name} ({'; '.join(loop.engine.notes)})",
            "memory": f"about {memory / 1e6:,.0f} MB ({chunk:,} clients at a time)",
            "time": f"about {seconds:.3g} s a round, {_minutes(seconds * experiment.rounds)} for all "
            f"{experiment.rounds} (without evaluation)",
            "bytes": f"{traffic.up / 1e6:,.3g} MB up and {traffic.down / 1e6:,.3g} MB down a round",
        }
        for listener in loop.listeners:
            rows[listener.key] = "; ".join(said.rstrip(".") for said in listener.forecast())
    table = Table(show_header=False, box=None)
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    for note in setup.notes:
        console.print(f"Note: {note}", markup=False, highlight=False)


def _one_round(loop: RunLoop, trial: Train) -> tuple[float, Traffic]:
    """Seconds of a round, the second of two, and its bytes; nothing of it is kept."""
    ctx = replace(loop.plan.context(0), sample=lambda: (trial.ids, loop.setup.participation))
    for _ in range(2):
        before = time.perf_counter()
        game = on_promises(lambda: loop.setup.round.run(ctx, loop.state.round, rng.key("estimate")))
        _, outcome = drive(game, loop.engine)
    return time.perf_counter() - before, outcome.traffic


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
