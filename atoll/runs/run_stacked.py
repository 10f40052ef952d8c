"""Several experiments as one stack: seeds and numeric settings beside each other in the same tensors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

import torch

from atoll.data import Partition
from atoll.engines import Choice, arithmetic, default_budget
from atoll.engines.ranks import launched
from atoll.errors import AtollError, ConfigError, RecordError
from atoll.experiment import Device, Experiment, Setup, find_device, load_dataset, make_partition, set_up
from atoll.records import Info, RunFolder, ended
from atoll.runs.callbacks import Callback, Callbacks, OnRound, Watcher, silent
from atoll.runs.checkpoint_schedule import Sharing
from atoll.runs.drivers import Asking, drive
from atoll.runs.engine_setup import on_device
from atoll.runs.interrupts import deferred_interrupts
from atoll.runs.lifecycle import claim, conduct, resumed_choice, same_device
from atoll.runs.lockstep import Lane, lockstep
from atoll.runs.run_loop import RunLoop
from atoll.runs.run_result import Run
from atoll.runs.stackable import why_not_stackable
from atoll.tree import Tree

Columns = tuple[Tree, Tree | None]


def run_together(
    experiments: Sequence[Experiment],
    folders: Sequence[Path],
    *,
    resume: bool = False,
    device: Device = "auto",
    callbacks: Sequence[Sequence[Callback]] = (),
    watch: Watcher | Sequence[Watcher] = silent,
) -> list[Run]:
    """Run experiments that differ in seeds and numeric settings as one stack, each with a folder of its own.

    Every run is what it would be alone, up to the order of float sums, and can be resumed alone. One that diverges or
    stops early leaves the stack; its `status` and `error` say why, and the others go on. `callbacks` are those of each
    run, or none; `watch` is told of the rounds of all, or each of several of those of one. Where stacking would be
    slower (convolutions on a CPU) they run one after the other: Ctrl-C ends the one at work as usual, and is raised if
    others have not begun.
    """
    _check(experiments, folders)
    watchers = [watch] * len(experiments) if callable(watch) else watch
    told = [Callbacks([*own, OnRound(w)]) for own, w in zip(callbacks or [()] * len(watchers), watchers, strict=True)]
    cells = [
        _Cell(e, RunFolder(f), claim(RunFolder(f), e, resume), c)
        for e, f, c in zip(experiments, map(Path, folders), told, strict=True)
    ]
    left = [c for c in cells if not ended(c.info)]
    if left:
        where = _one_device(left, device)
        with torch.random.fork_rng(devices=[torch.cuda.current_device()] if find_device(where).type == "cuda" else []):
            _run(left, where)
    return [c.outcome() for c in cells]


@dataclass(eq=False)
class _Cell:
    """One of the experiments, and where it stands."""

    experiment: Experiment
    folder: RunFolder
    info: Info | None
    callback: Callback
    setup: Setup = field(init=False)
    choice: Choice | None = None  # the engine that a resumed one had
    loop: RunLoop | None = None
    error: Exception | None = None

    def conduct(self) -> Asking[None]:
        """Its rounds; a failure that the user can put right is this cell's own."""
        loop, self.loop = self.loop, None  # what it holds goes when it leaves
        assert loop is not None
        try:
            yield from conduct(loop, self.info, self.callback)
        except AtollError as e:
            if not self.folder.exists():  # it has not begun, so there is no run to speak of
                raise
            self.error = e

    def outcome(self) -> Run:
        run = Run(self.folder.path)
        run.error = self.error
        return run


def _check(experiments: Sequence[Experiment], folders: Sequence[Path]) -> None:
    if launched():
        raise ConfigError("torchrun: a stack of runs is one process's work. Run them one by one with atoll.run there.")
    if not experiments or len(experiments) != len(folders):
        raise ConfigError(f"folders: {len(folders)} for {len(experiments)} experiments. Give one to each.")
    if len({Path(f).resolve() for f in folders}) < len(folders):
        raise ConfigError("folders: one is named twice. Give every experiment a folder of its own.")
    problem = why_not_stackable(experiments)
    if problem:
        raise ConfigError(problem)


def _one_device(cells: Sequence[_Cell], asked: Device) -> Device:
    """Where all of them run; those that are resumed stay where they were."""
    devices = {find_device(same_device(c.info, asked)).type: same_device(c.info, asked) for c in cells}
    if len(devices) > 1:
        raise RecordError(f"device: some of these runs were started on {' and some on '.join(devices)}. Resume apart.")
    return next(iter(devices.values()))


def _run(cells: Sequence[_Cell], device: Device) -> None:
    setups = _set_up(cells, device)
    columns = on_device(setups[0])
    for cell, setup in zip(cells, setups, strict=True):
        cell.setup, cell.choice = setup, resumed_choice(cell.info, cell.folder)
    beside = [c for c in cells if c.choice is None or c.choice.name == "vector"]
    with deferred_interrupts() as interrupted:
        done = beside if len(beside) > 1 and _stack(beside, columns, interrupted) else []
        for cell in (c for c in cells if c not in done):
            _unless(interrupted)
            cell.loop = loop = RunLoop(cell.setup, cell.folder, cell.choice, columns=columns)
            if len(cells) > 1:
                loop.engine.notes.append("runs went one after the other")
            drive(cell.conduct(), loop.engine)


def _set_up(cells: Sequence[_Cell], device: Device) -> list[Setup]:
    """All of them on one data set; partitions that are the same are made once."""
    dataset = load_dataset(cells[0].experiment)
    known: dict[str, Partition] = {}
    setups = []
    for e in (c.experiment for c in cells):
        name = json.dumps([e.seed, e.partition], sort_keys=True)
        if name not in known:
            known[name] = make_partition(e, dataset)
        if len(known) > 1 and any(p.noise is not None for p in known.values()):
            raise ConfigError("partition.name: feature noise belongs to one run's clients. Run these one by one.")
        setups.append(set_up(e, device, dataset, known[name]))
    return setups


def _stack(cells: Sequence[_Cell], columns: Columns, interrupted: Event) -> bool:
    """Run them as one stack; False, and nothing done, where the first one's engine is another."""
    lanes: list[Lane] = []
    sharing = Sharing()
    for cell in cells:
        _unless(interrupted)
        choice = cell.choice or (replace(cell.setup.choice, name="vector") if lanes else None)
        budget = default_budget(cell.setup.device) // len(cells)
        cell.loop = loop = RunLoop(cell.setup, cell.folder, choice, columns=columns, budget=budget, sharing=sharing)
        if loop.engine.name != "vector":
            return False
        loop.engine.notes.append(f"one of {len(cells)} runs in a stack, so seconds are of all")
        loop.together = len(cells)
        lanes.append(Lane(cell.conduct(), loop.engine))
    leader = lanes[0].engine.leading([lane.engine for lane in lanes])
    with arithmetic(cells[0].setup.device, cells[0].setup.choice.precision):  # the runs enter and leave it in turns
        lockstep(lanes, leader)
    for lane in lanes:
        if lane.error is not None:
            raise lane.error
    return True


def _unless(interrupted: Event) -> None:
    """Begin nothing new after Ctrl-C."""
    if interrupted.is_set():
        raise KeyboardInterrupt
