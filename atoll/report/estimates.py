"""Means over seeds with their 95 % t interval; a single seed has no interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from atoll.records import Floats
from atoll.report.metrics import MetricInfo
from atoll.report.seed_groups import Group
from atoll.stats import Estimate, half_width, t_interval

PHASES = ("sample", "train", "server", "evaluate", "record")  # in the order in which they run


@dataclass(frozen=True)
class SeedCurve:
    """Values of S seeds at the R rounds that all of them recorded: values are (S, R)."""

    rounds: NDArray[np.int64]
    values: Floats

    @property
    def mean(self) -> Floats:
        """The mean over seeds, by round."""
        mean: Floats = self.values.mean(axis=0)
        return mean

    @property
    def half(self) -> Floats | None:
        """Half the width of the interval, by round; None for a single seed."""
        return half_width(self.values)

    @property
    def last(self) -> Estimate | None:
        """The estimate at the last round that every seed reached."""
        return interval(self.values[:, -1].tolist()) if self.rounds.size else None


def interval(values: Sequence[float]) -> Estimate | None:
    """Mean and interval of one value per seed; None without values. A value that is not finite makes the mean so."""
    return t_interval(values) if values else None


def curve(group: Group, *path: str) -> SeedCurve:
    """One recorded number of a group by round, at the rounds that every seed recorded."""
    series = [record.series(*path) for record in group.records]
    rounds = reduce(np.intersect1d, [s.rounds for s in series])
    return SeedCurve(rounds, np.array([s.values[np.isin(s.rounds, rounds)] for s in series]))


def best(group: Group, metric: MetricInfo) -> Estimate | None:
    """Each seed's best round, then the mean over seeds. Chosen on the test data, so it flatters."""
    series = [record.series(metric.key).values for record in group.records]
    if not all(values.size for values in series):
        return None
    finite = [values[np.isfinite(values)] for values in series]
    pick = np.max if metric.higher_is_better else np.min
    return interval([float(pick(values)) if values.size else math.nan for values in finite])


def per_round(group: Group, *path: str) -> Estimate | None:
    """The mean over all rounds of each seed, then over seeds: what a round costs."""
    values = [record.series(*path).values for record in group.records]
    return interval([float(v.mean()) for v in values]) if all(v.size for v in values) else None


def phases(group: Group) -> list[str]:
    """The phases of a round, in the order in which they run, then any others."""
    lines = [line for record in group.records for line in record.rounds]
    timed = [(line.get("seconds") or {}).items() for line in lines]
    recorded = dict.fromkeys(phase for line in timed for phase, s in line if not isinstance(s, dict))  # not by rank
    return [phase for phase in PHASES if phase in recorded] + [phase for phase in recorded if phase not in PHASES]


def seconds(group: Group, *only: str) -> Estimate | None:
    """Seconds per round, of all phases or of some; a phase that some rounds skip counts as 0 there."""
    wanted = [phase for phase in phases(group) if not only or phase in only]
    by_seed = [
        sum(float(record.series("seconds", phase).values.sum()) for phase in wanted) / len(record.rounds)
        for record in group.records
    ]
    return interval(by_seed) if wanted else None
