"""From experiments to a card: plan, run what is not done yet, measure, score."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from atoll.card import attacks
from atoll.card.card_budget import CardSize, chosen_size, measured_pace, remember, remembered, said
from atoll.card.card_measures import Measured, last_value, weighted_mean
from atoll.card.card_plan import CardPlan, Method, make_plan, read_methods, signature
from atoll.card.profiles import PROFILES
from atoll.card.scenarios import YARDSTICKS
from atoll.card.score_card import ScoreCard, score
from atoll.card.scores import chance_level, target
from atoll.errors import ConfigError
from atoll.experiment import Device
from atoll.records import INTERRUPTED, Record, SuiteFolder, failed, reached_end, read_runs
from atoll.report import MetricInfo, counted, listed, primary
from atoll.suites.sweeps import Events, Sweep, SweepPlan
from atoll.suites.sweeps import run as sweep

SHARE = 0.9  # of the way from chance to pooled data: the target of costs
SEEDS = 3
SHORT = 60.0  # seconds of a budget in which processes of their own do not pay
_YARDSTICKS = tuple(scenario.name for scenario in YARDSTICKS)
Sources = Sequence[tuple[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class CardOptions:
    """How a card is made."""

    seeds: int | None = None  # None: 3, or what the budget allows
    rounds: int | None = None
    budget: float | None = None  # seconds
    attacks: tuple[str, ...] = attacks.WORST_OF
    profile: str = "atoll"
    target: float | None = None  # of the metric; None: SHARE of the way
    metric: str | None = None
    jobs: int = 1
    device: Device = "auto"

    @property
    def workers(self) -> int:
        """Tasks at once: none beside this process where starting others would take most of the budget."""
        return 1 if self.budget is not None and self.budget < SHORT else self.jobs


@dataclass(frozen=True)
class CardOutcome:
    """The card, as far as its runs came."""

    card: ScoreCard | None  # None: not even the methods themselves were run
    sweep: Sweep
    late: bool  # the budget is used up

    @property
    def interrupted(self) -> bool:
        return self.sweep.status == INTERRUPTED and not self.late


def plan_card(
    sources: Sources, overrides: Sequence[str], folder: Path, options: CardOptions, dry: bool = False
) -> CardPlan:
    """What will run; a budget is measured on a few rounds, and what was chosen is remembered in the folder.

    A `dry` plan runs and writes nothing, so that of a new budget it is the whole card.
    """
    _check(options)
    tried = attacks.check_attacks(options.attacks)
    methods = read_methods(sources, overrides, options.rounds)
    _check_metric(options.metric, methods)
    if options.budget is None or options.seeds is not None:
        return make_plan(methods, options.seeds or SEEDS, tried)
    asked = signature(methods, {"budget": options.budget, "attacks": tried})
    size, spent = remembered(folder, asked), 0.0
    if size is None and dry:
        whole = f"--budget is measured when the card runs: this is the card with {SEEDS} seeds and all rounds."
        return replace(make_plan(methods, SEEDS, tried), left_out=(whole,))
    if size is None:
        began = time.monotonic()
        pace = measured_pace(methods, options.device)
        spent = time.monotonic() - began
        left = max(0.0, options.budget - spent)
        size = chosen_size(lambda s: make_plan(_shorter(methods, s), s.seeds, tried), pace, left, options.workers)
        remember(folder, asked, size)
    shorter = _shorter(methods, size)
    words = said(size, shorter, {m.name: int(m.raw["rounds"]) for m in methods})
    return replace(make_plan(shorter, size.seeds, tried), left_out=tuple(words), spent=spent)


def run_card(
    plan: CardPlan, folder: Path, options: CardOptions, title: str, events: Events | None = None, command: str = ""
) -> CardOutcome:
    """Run what is left of the plan, and score what there is; a card can always be gone on with."""
    until = None if options.budget is None else time.monotonic() + max(0.0, options.budget - plan.spent)
    told = events or Events()
    told.expect(plan.cells, SuiteFolder(folder).left(plan.cells))
    how: dict[str, Any] = {"jobs": options.workers, "device": options.device, "events": told, "until": until}
    done = sweep(_without_diverged(plan, folder), folder, resume=True, **how)
    done = Sweep(folder, plan.cells, {**_diverged_states(plan, folder), **done.states})
    late = until is not None and time.monotonic() >= until
    measured = measure(plan, done, options)
    if not measured:
        return CardOutcome(None, done, late)
    notes = tuple(note for m in plan.methods for note in m.notes)
    scored = {one.method for one in measured}
    unscored = [f"{m.name} has no scores: none of its own runs is there." for m in plan.methods if m.name not in scored]
    left = (*plan.left_out, *unscored, *_left(plan, done, late))
    card = score(title, PROFILES[options.profile], measured, plan.seeds, notes=notes, left_out=left)
    return CardOutcome(replace(card, command=command), done, late)


def _without_diverged(plan: CardPlan, folder: Path) -> SweepPlan:
    """What is known to diverge would do so again: that is a result."""
    place = SuiteFolder(folder)
    planned = plan.sweep()
    return replace(planned, cells=[cell for cell in planned.cells if not place.diverged(cell)])


def _diverged_states(plan: CardPlan, folder: Path) -> dict[str, str]:
    place = SuiteFolder(folder)
    return {cell.name: failed("DivergenceError") for cell in plan.cells if place.diverged(cell)}


def measure(plan: CardPlan, done: Sweep, options: CardOptions) -> list[Measured]:
    """What the finished runs say of every method that has any."""
    records = _records(plan, done)
    own = [r for m in plan.methods for r in records.get((m.name, "own"), {}).values()]
    if not own:
        return []
    metric = primary(own, options.metric)
    records |= _strongest_yardsticks(plan, records, metric)
    aim = options.target if options.target is not None else _target(records, plan, metric)
    found = [_measured(plan, done, m, metric, aim, records, options.device) for m in plan.methods]
    return [one for one in found if one.own]


def _measured(
    plan: CardPlan, done: Sweep, method: Method, metric: MetricInfo, aim: float, records: Any, device: Device
) -> Measured:
    mine = {name: by_seed for (owner, name), by_seed in records.items() if owner == method.name}
    missing = {name: why for (owner, name), why in plan.missing.items() if owner == method.name}
    diverged = _diverged(plan, done, method)
    for job in plan.jobs:
        if job.method == method.name and job.scenario.name not in {*mine, *diverged}:
            state = done.failed.get(_run_name(done, job.cell.digest), "was not run")
            missing.setdefault(job.scenario.name, state)
    titles = {job.scenario.name: job.scenario.title for job in plan.jobs if job.method == method.name}
    audits, leaks = {}, {}
    for seed, record in mine.get("own", {}).items():
        audits[seed], why = attacks.membership(record, device)
        if why:
            missing.setdefault("membership", why)
    experiments = {job.seed: job.cell.experiment for job in plan.jobs if _is_own(job, method)}
    for seed in mine.get("own", {}):
        leaks[seed], why = attacks.leakage(experiments[seed], seed, device)
        if why:
            missing.setdefault("leakage", why)
    return Measured(
        method.name,
        metric,
        mine,
        aim,
        missing,
        {s: a for s, a in audits.items() if a is not None},
        {s: x for s, x in leaks.items() if x is not None},
        titles,
        diverged,
        _clean_rates(mine, device),
    )


def _clean_rates(mine: Mapping[str, Mapping[int, Record]], device: Device) -> dict[str, dict[int, float]]:
    """What attacks that want a class get from the method without them, by condition and seed."""
    found: dict[str, dict[int, float]] = {}
    for name, by_seed in mine.items():
        for seed, record in by_seed.items():
            if seed in mine.get("own", {}) and record.attack is not None and math.isfinite(record.attack.success):
                found.setdefault(name, {})[seed] = attacks.clean_rate(mine["own"][seed], record, device)
    return found


def _is_own(job: Any, method: Method) -> bool:
    return bool(job.method == method.name and job.scenario.name == "own")


def _records(plan: CardPlan, done: Sweep) -> dict[tuple[str, str], dict[int, Record]]:
    """By method and condition; a run that two methods share is read once."""
    folders = {cell.digest: done.folders[cell.name] for cell in done.cells if reached_end(done.states[cell.name])}
    digests = list(dict.fromkeys(job.cell.digest for job in plan.jobs if job.cell.digest in folders))
    by_digest = {digest: read_runs([folders[digest]])[0] for digest in digests}
    found: dict[tuple[str, str], dict[int, Record]] = {}
    for job in plan.jobs:
        if job.cell.digest in by_digest:
            found.setdefault((job.method, job.scenario.name), {})[job.seed] = by_digest[job.cell.digest]
    return found


def _diverged(plan: CardPlan, done: Sweep, method: Method) -> dict[str, frozenset[int]]:
    """By condition, the seeds at which it diverged. Of what it is compared with, that says nothing of the method."""
    place, found = SuiteFolder(done.folder), dict[str, frozenset[int]]()
    for job in plan.jobs:
        name = job.scenario.name
        if job.method == method.name and name not in _YARDSTICKS and place.diverged(job.cell):
            found[name] = found.get(name, frozenset()) | {job.seed}
    return found


def _strongest_yardsticks(plan: CardPlan, records: Any, metric: MetricInfo) -> dict[tuple[str, str], Any]:
    """Of what methods are compared with, the best that any of them brought, where they have the same clients.

    Each comes with its method's learning rate: one that was badly chosen must not make its method look good.
    """
    sign, found = 1.0 if metric.higher_is_better else -1.0, {}
    for name in _YARDSTICKS:
        known = {m.name: records[m.name, name] for m in plan.methods if (m.name, name) in records}
        for method, mine in known.items():
            alike = [other for other in known.values() if _splits(other) == _splits(mine)]
            found[method, name] = max(alike, key=lambda one: sign * _reached(one, metric, own=name != "fedsgd"))
    return found


def _splits(by_seed: Mapping[int, Record]) -> list[tuple[int, str, str]]:
    return [(seed, record.split, record.data) for seed, record in by_seed.items()]


def _reached(by_seed: Mapping[int, Record], metric: MetricInfo, own: bool) -> float:
    values = [weighted_mean(r, metric.key) if own else last_value(r, metric.key) for r in by_seed.values()]
    finite = [v for v in values if v is not None and math.isfinite(v)]
    return fmean(finite) if finite else math.inf * (-1 if metric.higher_is_better else 1)


def _target(records: Any, plan: CardPlan, metric: MetricInfo) -> float:
    """SHARE of the way from chance to what pooled data reaches, in the mean; NaN where that is not known."""
    central = [r for m in plan.methods for r in records.get((m.name, "central"), {}).values()]
    reached = [v for r in central if math.isfinite(v := last_value(r, metric.key))]
    if not reached or not central[0].series(metric.key).values.size:
        return math.nan
    chance = fmean(chance_level(metric.key, r.run.get("label_counts")) for r in central)
    return float(f"{target(fmean(reached), chance, SHARE, metric.higher_is_better):.3g}")


def _left(plan: CardPlan, done: Sweep, late: bool) -> list[str]:
    """What was planned and is not there."""
    waiting = [
        cell.name for cell in done.cells if not reached_end(done.states[cell.name]) and cell.name not in done.failed
    ]
    words = []
    if waiting:
        why = "the budget is used up" if late else "the card was stopped"
        words.append(
            f"{counted(len(waiting), 'run')} of {len(done.cells)} not done, since {why}: the same command goes on."
        )
    place = SuiteFolder(done.folder)
    diverged = [cell.name for cell in done.cells if place.diverged(cell)]
    if diverged:
        words.append(
            f"{counted(len(diverged), 'run')} diverged, of which nothing is left: {listed(diverged[:4])}"
            f"{', ...' if len(diverged) > 4 else '.'}"
        )
    broken = {name: why for name, why in done.failed.items() if name not in diverged}
    if broken:
        name, why = next(iter(broken.items()))
        words.append(f"{counted(len(broken), 'run')} failed; the first: {name}: {why}")
    missing = sorted(set(plan.missing.values()))
    words += [f"Not measured: {why}." for why in missing]
    return words


def _run_name(done: Sweep, digest: str) -> str:
    return next((cell.name for cell in done.cells if cell.digest == digest), "")


def _shorter(methods: Sequence[Method], size: CardSize) -> tuple[Method, ...]:
    """The methods with a share of their rounds."""
    rounds = [max(min(2, int(m.raw["rounds"])), math.ceil(size.share * int(m.raw["rounds"]))) for m in methods]
    return tuple(replace(m, raw={**m.raw, "rounds": r}) for m, r in zip(methods, rounds, strict=True))


def _check_metric(metric: str | None, methods: Sequence[Method]) -> None:
    """Before hours of runs; a path into the record (`clients.accuracy.mean`) is known only from it."""
    lacking = [m for m in methods if metric is not None and "." not in metric and metric not in m.known.metrics]
    if lacking:
        known = ", ".join(lacking[0].known.metrics)
        raise ConfigError(f"--metric: {lacking[0].name} has no {metric!r}. It has {known}.")


def _check(options: CardOptions) -> None:
    problems = []
    if options.profile not in PROFILES:
        problems.append(f"--profile: {options.profile!r} is not known. Profiles: {', '.join(PROFILES)}.")
    if options.seeds is not None and options.seeds < 1:
        problems.append(f"--seeds: must be above 0 (got {options.seeds}).")
    if options.rounds is not None and options.rounds < 1:
        problems.append(f"--rounds: must be above 0 (got {options.rounds}).")
    if problems:
        raise ConfigError(problems)
