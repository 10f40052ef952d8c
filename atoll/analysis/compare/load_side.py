"""What stands at a path: a run, a folder of runs, a sweep, or a suite's results; each as series of values by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from atoll.errors import ConfigError, RecordError
from atoll.records import (
    FINISHED,
    Cell,
    Claim,
    Record,
    Results,
    SecurityLevel,
    When,
    cell_claims,
    is_results,
    read_results,
    read_runs,
    runs_at,
)
from atoll.report import Group, MetricInfo, group, group_attack, group_claims, group_level, primary, suite_metric


@dataclass(frozen=True)
class SeedRun:
    """One run: its value, and what it must share with its partner to be a pair."""

    seed: int
    value: float
    partition: str
    status: str = FINISHED
    data: str = ""  # the digest of its examples, where it is known
    inputs: Mapping[str, str] = field(default_factory=dict)  # and of its graph, and of other files, by setting


@dataclass(frozen=True)
class SettingRuns:
    """One setting: where it stands (dotted settings, or a suite's axes), and a run for every seed."""

    place: Mapping[str, Any]
    runs: tuple[SeedRun, ...]
    held: tuple[Claim, ...] = ()  # what all its runs say of their privacy
    security: SecurityLevel | None = None  # and of what was seen of their clients
    attack: str = ""  # who attacked, and what they knew


@dataclass(frozen=True)
class Side:
    """All that one argument names, not yet measured."""

    name: str
    records: tuple[Record, ...] = ()  # of runs
    results: Results | None = None  # of a suite
    pick: str | None = None  # only cells of this method (or of this name), as a pattern

    @property
    def method(self) -> str:
        """The key that holds what is usually compared."""
        return "algorithm.name" if self.results is None else self.results.axes[-1]

    def series(self, metric: MetricInfo, when: When) -> list[SettingRuns]:
        """A series for every setting, of the values of the metric."""
        if self.results is not None:
            return [_of_cell(cell, when, metric.higher_is_better) for cell in self._cells(self.results)]
        return [_of_group(members, metric, when) for members in group(self._records())]

    def _cells(self, results: Results) -> list[Cell]:
        cells = [cell for cell in results.cells if cell.runs and self._picked(cell.method, cell.name)]
        if not cells:
            known = ", ".join(dict.fromkeys(cell.method for cell in results.cells))
            raise RecordError(f"{self.name}: has no cell with runs that matches. Methods: {known or 'none'}.")
        return cells

    def _records(self) -> list[Record]:
        picked = [r for r in self.records if self._picked(r.algorithm, r.label)]
        if not picked:
            known = ", ".join(dict.fromkeys(r.algorithm for r in self.records))
            raise RecordError(f"{self.name}: has no run that matches. Algorithms: {known}.")
        return picked

    def _picked(self, *names: str) -> bool:
        return self.pick is None or any(fnmatchcase(name, self.pick) for name in names)


def opened(argument: str) -> Side:
    """What stands at a path, or at all paths of a pattern; `@fedavg` after it picks one method."""
    path, pick = argument, None
    if not Path(argument).exists() and "@" in argument:
        path, _, pick = argument.rpartition("@")
    if is_results(Path(path)):
        return Side(argument, results=read_results(Path(path)), pick=pick)
    places = [Path(path)] if Path(path).exists() else _fitting(Path(path))
    folders = [folder for place in places for folder in runs_at(place)]
    if not folders:
        raise RecordError(
            f"{path}: is not there, or holds no runs. Name a run's folder, a folder of runs, a sweep, a suite's folder "
            "or results.json, or a pattern of these in quotes."
        )
    return Side(argument, records=tuple(read_runs(folders)), pick=pick)


def _fitting(pattern: Path) -> list[Path]:
    """The paths that fit a pattern."""
    root = Path(pattern.anchor)
    rest = pattern.relative_to(pattern.anchor)
    return sorted(root.glob(str(rest))) if rest.parts else []


def metric_of(sides: Sequence[Side], asked: str | None) -> MetricInfo:
    """What is compared: what was asked for, the suites' own metric, or the first that all runs have."""
    suites = [side.results for side in sides if side.results is not None]
    if suites:
        metrics = {(r.metric, r.higher, r.scale) for r in suites}
        if len({f[0] for f in metrics}) > 1 or (asked and {asked} != {f[0] for f in metrics}):
            names = ", ".join(sorted(f[0] for f in metrics))
            raise ConfigError(f"--metric: a suite's results hold one metric (here {names}; asked for: {asked}).")
        return suite_metric(suites[0])
    records = [record for side in sides for record in side.records]
    return primary(records, asked)


def _of_cell(cell: Cell, when: When, higher: bool) -> SettingRuns:
    runs = tuple(SeedRun(run.seed, run.at(when, higher), run.partition, run.status) for run in cell.runs)
    return SettingRuns({"block": cell.block, **cell.path}, runs, cell_claims(cell))


def _of_group(members: Group, metric: MetricInfo, when: When) -> SettingRuns:
    place = {key: value for key, value in members.settings.items() if key != "label"}
    runs = tuple(_of_record(record, metric, when) for record in members.records)
    return SettingRuns(place, runs, group_claims(members), group_level(members), group_attack(members))


def _of_record(record: Record, metric: MetricInfo, when: When) -> SeedRun:
    values = record.series(metric.key).values.tolist()
    best = max if metric.higher_is_better else min
    finite = [v for v in values if math.isfinite(v)]
    value = math.nan if not values else values[-1] if when == "last" else best(finite, default=math.nan)
    return SeedRun(record.seed, value, record.split, record.status, record.data, record.inputs)
