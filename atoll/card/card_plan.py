"""Which runs a card is made of: methods, conditions and seeds, as cells of a sweep that can be resumed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atoll.card import attacks
from atoll.card.scenarios import DATA, FAULTS, LATE, OWN, YARDSTICKS, Known, Raw, Scenario, prepared, straggling_clock
from atoll.clock import Clock, ClockTable
from atoll.core import resolve
from atoll.errors import ConfigError
from atoll.experiment import Experiment, Setup, override, set_up
from atoll.experiment import read as read_file
from atoll.suites import folder_name
from atoll.suites.sweeps import Resources, SweepCell, SweepPlan, SweepTable


@dataclass(frozen=True)
class Method:
    """One experiment of the card: its name, its file, and what conditions must know of it."""

    name: str
    raw: Raw  # prepared, without a seed
    known: Known
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CardJob:
    """A cell of the sweep, and what it is for."""

    method: str
    scenario: Scenario
    seed: int
    cell: SweepCell


@dataclass(frozen=True)
class CardPlan:
    """All runs of a card, the most telling first; `missing` is what cannot be run, with the reason."""

    methods: tuple[Method, ...]
    seeds: tuple[int, ...]
    jobs: tuple[CardJob, ...]
    missing: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (method, condition) -> why
    left_out: tuple[str, ...] = ()
    attacks: tuple[str, ...] = ()
    spent: float = 0.0  # seconds of the budget, on finding out what fits

    @property
    def cells(self) -> list[SweepCell]:
        """Every experiment once."""
        return list({job.cell.digest: job.cell for job in self.jobs}.values())

    @property
    def rounds(self) -> int:
        """Of all cells together."""
        return sum(cell.experiment.rounds for cell in self.cells)

    def sweep(self) -> SweepPlan:
        """For whoever runs sweeps."""
        axes: dict[str, list[Any]] = {"method": [m.name for m in self.methods], "seed": list(self.seeds)}
        return SweepPlan(SweepTable(axes, True, Resources()), self.cells)


def read_methods(
    sources: Sequence[tuple[str, Mapping[str, Any]]], overrides: Sequence[str], rounds: int | None
) -> tuple[Method, ...]:
    """The experiments by name, each checked and set up once; or one ConfigError with everything that is wrong."""
    problems, methods = [], []
    for name, raw in sources:
        try:
            methods.append(_method(name, override(raw, list(overrides)), rounds))
        except ConfigError as e:
            problems += [f"{name}: {p}" if len(sources) > 1 else p for p in e.problems]
    if problems:
        raise ConfigError(problems)
    return tuple(methods)


def named_sources(files: Sequence[Path]) -> list[tuple[str, dict[str, Any]]]:
    """Files as methods: called as their label, else as they are called themselves."""
    raws = [(path, dict(read_file(path))) for path in files]
    swept = [path for path, raw in raws if "sweep" in raw]
    if swept:
        raise ConfigError(f"{swept[0]}: has a [sweep] table. A card compares files: write one for each method.")
    names = [str(raw.get("label") or path.stem) for path, raw in raws]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{twice[0]}: is the name of two methods. Give each file a `label` of its own.")
    return [(name, raw) for name, (_, raw) in zip(names, raws, strict=True)]


def make_plan(methods: Sequence[Method], seeds: int, tried: Sequence[str]) -> CardPlan:
    """Every condition of every method at every seed. What cannot even be written down is missing."""
    jobs: list[CardJob] = []
    missing: dict[tuple[str, str], str] = {}
    numbers = tuple(range(seeds))
    for method, scenario in _wanted(methods, tried):
        try:
            jobs += _cells(method, scenario, numbers)
        except ConfigError as e:
            missing[_key(method, scenario)] = e.problems[0]
    for m in methods:
        if m.known.deadline is None:
            missing[m.name, "stragglers"] = "this experiment cannot be timed"
    return CardPlan(tuple(methods), numbers, tuple(jobs), missing, attacks=tuple(tried))


def _wanted(methods: Sequence[Method], tried: Sequence[str]) -> list[tuple[Method, Scenario]]:
    """The most telling first: where a budget ends, what comes later is left out."""
    blind = any(m.known.blind for m in methods)  # all methods meet the same attackers
    attacked = [_attack(name, blind) for name in tried]
    stages: list[Sequence[Scenario]] = [(OWN, *YARDSTICKS), DATA, FAULTS, attacked]
    pairs = [(m, s) for stage in stages for m in methods for s in stage]
    return [(m, s) for m, s in pairs if s.name != "stragglers" or m.known.deadline is not None]


def _attack(name: str, blind: bool) -> Scenario:
    title = f"attack: {name.replace('_', ' ')} by {attacks.SHARE:.0%}"
    return Scenario(f"attack-{name}", "robustness", title, lambda raw, known: attacks.attacked(raw, name, blind))


def _cells(method: Method, scenario: Scenario, seeds: Sequence[int]) -> list[CardJob]:
    raw = scenario.change(method.raw, method.known)
    first = Experiment.parse({**raw, "seed": seeds[0]})
    jobs = []
    for seed in seeds:
        experiment = first.model_copy(update={"seed": seed})
        name = folder_name([method.name, scenario.name, f"seed={seed}"])
        where = {"method": method.name, "condition": scenario.name, "seed": seed}
        jobs.append(CardJob(method.name, scenario, seed, SweepCell(name, where, experiment, experiment.digest())))
    return jobs


def _key(method: Method, scenario: Scenario) -> tuple[str, str]:
    return method.name, scenario.name


def _method(name: str, raw: Raw, rounds: int | None) -> Method:
    """Set up as the card runs it: in virtual time if that is possible."""
    plain = {k: v for k, v in raw.items() if k not in ("seed", "stop")}
    notes = []
    if not (raw.get("evaluate") or {}).get("holdout"):
        notes.append(f"{name}: a fifth of each client's examples is held out, to measure it on what it has not seen.")
    if "stop" in raw:
        notes.append(f"{name}: [stop] is left out, so that all methods make all their rounds.")
    try:
        timed = prepared(plain, rounds, clock=True)
        setup = set_up(Experiment.parse(timed))
    except ConfigError:
        timed = prepared(plain, rounds, clock=False)
        setup = set_up(Experiment.parse(timed))  # what is still wrong is the file's
    if setup.attack is not None:
        notes.append(
            f"{name}: its own [attack] ({setup.attack.name}) stands in all conditions but those of attacks, which put "
            "theirs in its place, and training alone, pooled data and FedSGD, which have none."
        )
    labels = setup.dataset.labels
    classes = None if labels is None else int(labels.max()) + 1
    known = Known(setup.partition.size, classes, _deadline(setup, timed), _blind(setup), (*setup.metrics, "train_loss"))
    return Method(name, timed, known, tuple(notes))


def _blind(setup: Setup) -> bool:
    """Is there no attack that knows honest updates, with secret sums or under noise that they would answer to?"""
    bound = resolve(setup.chain, 0, []).bind(setup.spec())[0]
    return setup.experiment.secure is not None or any(m.has_server_side() for m in bound.mechanisms())


def _deadline(setup: Setup, raw: Raw) -> float | None:
    """When all but the slowest have reported, at seed 0; None where nothing can be timed."""
    if setup.experiment.clock is None or setup.algorithm.traits().pooled:
        return None
    size = setup.population.size
    ids = np.arange(size)
    steps = setup.population.steps(torch.from_numpy(ids)).numpy()
    clock = Clock.of(ClockTable.model_validate(straggling_clock()), 0, size)
    arrived = clock.timeline(0, ids, steps, 0.0, 0.0, 0.0).arrived
    return float(np.quantile(arrived, 1 - LATE))


def signature(methods: Sequence[Method], options: Mapping[str, Any]) -> str:
    """What a card was asked for: the same for the same files and options."""
    return json.dumps([[m.name, m.raw] for m in methods] + [dict(options)], sort_keys=True, default=str)
