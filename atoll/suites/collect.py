"""From run folders to results: everything is read from them, nothing is remembered."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

from atoll.clock import RoundParts, Timeline
from atoll.errors import RecordError
from atoll.experiment import did_you_mean
from atoll.records import (
    Cell,
    Results,
    SuiteFolder,
    Trace,
    Trial,
    Tuning,
    attack_for_results,
    audit_for_results,
    claims_for_results,
    find,
    has,
    number_or_nan,
    security_for_results,
)
from atoll.suites.experiments import Candidate, CellPlan
from atoll.suites.skew import skew
from atoll.suites.suite import Suite
from atoll.suites.sweeps import SweepCell
from atoll.suites.tuning import choose


def collect(
    suite: Suite,
    jobs: Sequence[CellPlan],
    wanted: Collection[tuple[str, str]],
    folder: Path,
    tuning: Tuning,
    command: str,
) -> Results:
    """What came of a suite: the wanted places, and others that an earlier call has left in the folder."""
    reader = Reader(suite, SuiteFolder(folder), tuning)
    cells = [(job, reader.cell(job)) for job in jobs]
    reported = [(job, cell) for job, cell in cells if job.place.key in wanted or cell.runs]
    titles = {b.name: b.title for b in suite.blocks if b.title}
    references = {b.name: b.reference for b in suite.blocks if b.reference is not None}
    return Results(
        suite=suite.name,
        title=suite.title,
        size=suite.size,
        metric=suite.metric,
        higher=suite.higher,
        axes=suite.axes,
        cells=tuple(cell for _, cell in reported),
        about=suite.about,
        tuning=tuning,
        scale=suite.scale,
        reference=suite.reference,
        made={
            "command": command,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "data": _all(_data(job.place.base.get("data")) for job, _ in reported),
            **reader.machines(),
        },
        titles=titles,
        references=references,
        baseline=suite.baseline,
        reach=suite.reach,
        worst_over=suite.worst_over,
        deviates=suite.deviates,
        missing={m.cells: m.why for m in suite.missing},
    )


class Reader:
    """Reads places from a suite's folder, and notes on what machines their runs were made."""

    def __init__(self, suite: Suite, folder: SuiteFolder, tuning: Tuning) -> None:
        self.suite, self.folder, self.tuning = suite, folder, tuning
        self.read: dict[str, tuple[Trace, float, Mapping[str, Any]]] = {}  # digest -> trace, seconds, run.json
        self.unusable: dict[str, str] = {}  # digest -> why a run that is done says nothing

    def cell(self, job: CellPlan) -> Cell:
        """A place with its runs, the trials that chose its settings, and what failed."""
        place = job.place
        option = self.chosen(job)
        runs = self._traces(option.finals) if option else ()
        failed = self._failed(job, option)
        return Cell(
            block=place.block,
            path=place.path,
            runs=runs,
            settings=option.settings if option else {},
            trials=self._trials(job) if job.tuned else (),
            failed=failed,
            skew=self._skew(job, option),
            quirk=place.quirk,
            wanted=len(place.seeds),
            diverged=sum(map(self.folder.diverged, option.finals)) if option else 0,
            stands_for=place.stands_for,
            untuned=place.why if self.tuning == "validation" and not job.tuned else None,
        )

    def chosen(self, job: CellPlan) -> Candidate | None:
        """The option that the trials chose; None while some are not over, or if all failed."""
        if not job.tuned:
            return job.options[0]
        if not all(self.folder.over(cell) for option in job.options for cell in option.trials):
            return None
        best = choose([self._score(option) for option in job.options], self.suite.higher)
        return None if best is None else job.options[best]

    def machines(self) -> dict[str, Any]:
        """Versions and machines of the runs that were read, and their seconds in all."""
        infos = [info for _, _, info in self.read.values()]
        versions = {name: _all(i["versions"].get(name) for i in infos) for name in ("atoll", "code", "torch", "python")}
        machine = {name: _all(i["hardware"].get(name) for i in infos) for name in ("cpu", "cores", "gpu")}
        return {
            "versions": versions,
            "machine": machine,
            "seconds": round(sum(seconds for _, seconds, _ in self.read.values()), 1),
        }

    def trace(self, cell: SweepCell) -> Trace | None:
        """The trace of a run, if it is done and has the metric."""
        if not self.folder.done(cell) or cell.digest in self.unusable:
            return None
        if cell.digest not in self.read:
            try:
                info, folder = self.folder.info(cell), self.folder.run(cell)
                entries, times = folder.record(), folder.times()
                self.read[cell.digest] = trace(info, entries, self.suite.metric, times), _spent(info, entries), info
            except RecordError as e:
                self.unusable[cell.digest] = str(e)
                return None
        return self.read[cell.digest][0]

    def _traces(self, cells: Sequence[SweepCell]) -> tuple[Trace, ...]:
        return tuple(trace for cell in cells if (trace := self.trace(cell)) is not None)

    def _why(self, cell: SweepCell) -> str | None:
        self.trace(cell)
        return self.unusable.get(cell.digest) or self.folder.failed(cell)

    def _trials(self, job: CellPlan) -> tuple[Trial, ...]:
        return tuple(Trial(o.settings, self._traces(o.trials), self._score(o)) for o in job.options if self._any(o))

    def _any(self, option: Candidate) -> bool:
        return any(self.folder.over(cell) for cell in option.trials)

    def _score(self, option: Candidate) -> float:
        """What decides: the held-out metric, or (the paper's way) the mean on the test data; NaN if one is missing."""
        runs = self._traces(option.trials)
        if len(runs) < len(option.trials):
            return math.nan
        scores = [run.last if self.tuning == "paper" else run.validation for run in runs]
        known = [math.nan if value is None else value for value in scores]
        return math.fsum(known) / len(known) if all(map(math.isfinite, known)) else math.nan

    def _failed(self, job: CellPlan, option: Candidate | None) -> dict[str, str]:
        reasons: dict[str, str] = {}
        for cell in option.finals if option else ():
            if why := self._why(cell):
                reasons[f"seed {cell.experiment.seed}"] = why
        for other in job.options if job.tuned else ():
            for cell in other.trials:
                if (why := self._why(cell)) and (option is None or cell not in option.finals):
                    words = ", ".join(f"{path} = {value}" for path, value in other.settings.items())
                    reasons[f"trial {words}"] = why
        return reasons

    def _skew(self, job: CellPlan, option: Candidate | None) -> dict[str, float]:
        """Of the first run that is there: the clients are the same for all settings and methods of a seed."""
        cells = [*(option.finals if option else ()), *(c for o in job.options for c in (*o.finals, *o.trials))]
        first = next((c for c in cells if self.folder.info(c) and c.experiment.seed == job.place.seeds[0]), None)
        return {} if first is None else skew(self.folder.info(first))


def trace(
    info: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
    metric: str,
    times: Sequence[Mapping[str, Any]] = (),
) -> Trace:
    """One run as results keep it; `times` are the lines of its clock, if it had one."""
    path = metric.split(".")
    measured = [i for i, entry in enumerate(entries) if has(entry, path)]
    if not measured:
        raise RecordError(_never(info, entries, metric))
    bytes_ = list(accumulate(float(sum(entry.get("bytes", {}).values())) for entry in entries))
    up = list(accumulate(float(entry.get("bytes", {}).get("up", 0)) for entry in entries))
    seconds = list(accumulate(_seconds(entry, without=("evaluate",)) for entry in entries))
    spread = entries[measured[-1]].get("clients", {}).get(path[-2] if len(path) > 1 else metric, {})
    held = info["experiment"].get("evaluate", {}).get("holdout", 0.0) > 0
    return Trace(
        seed=int(info["seed"]),
        digest=str(info["digest"]),
        rounds=tuple(int(entries[i]["round"]) for i in measured),
        values=tuple(number_or_nan(find(entries[i], *path)) for i in measured),
        bytes=tuple(bytes_[i] for i in measured),
        seconds=tuple(seconds[i] for i in measured),
        together=int(info["engine"].get("together", 1)),
        clients={key: number_or_nan(value) for key, value in spread.items()},
        validation=number_or_nan(spread.get("mean")) if held else None,
        partition=str(info["partition"]["digest"]),
        status=str(info["status"]),
        privacy={**claims_for_results(info.get("privacy"), entries[-1]), **audit_for_results(info.get("privacy"))},
        up=tuple(up[i] for i in measured),
        times=RoundParts.mean([Timeline.from_line(line) for line in times])._asdict() if times else {},
        security=security_for_results(info, entries),
        attack=attack_for_results(info, entries),
        kept=info.get("best", {}).get("round") if info["experiment"].get("stop") else None,
    )


def _spent(info: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> float:
    """This run's share of all seconds, evaluation included."""
    return sum(_seconds(entry) for entry in entries) / int(info["engine"].get("together", 1))


def _seconds(entry: Mapping[str, Any], without: Collection[str] = ()) -> float:
    phases = entry.get("seconds", {})
    return math.fsum(v for k, v in phases.items() if isinstance(v, int | float) and k not in without)


def _never(info: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], metric: str) -> str:
    known = [key for key in (entries[-1] if entries else {}) if isinstance(entries[-1][key], float)]
    guess = did_you_mean(metric, known)
    return f"metric: the runs of {info['label']} have no {metric!r}.{guess} They have {', '.join(known)}."


def _data(entry: Any) -> str | None:
    """The name of the data set, where the file says it."""
    return entry.get("name") if isinstance(entry, Mapping) else entry


def _all(values: Any) -> Any:
    """The value that all have, or all values that there are."""
    distinct = list(dict.fromkeys(values))
    return distinct[0] if len(distinct) == 1 else (distinct or None)
