"""When a run ends before its last round."""

from __future__ import annotations

import math
from dataclasses import dataclass

from atoll.experiment import StopTable, Watched
from atoll.schedules import History, Schedule


@dataclass(frozen=True)
class Stopping:
    """Early stopping on a metric, a target reached, or a schedule that has run out. A function of the record alone."""

    table: StopTable | None
    watched: Watched | None
    schedules: list[Schedule]

    def __call__(self, history: History) -> str | None:
        """Why to stop now, if so."""
        if any(s.finished(history) for s in self.schedules):
            return "the schedule has made its last reduction"
        if self.table is None or self.watched is None:
            return None
        values = [self.watched.value(line) for line in history if self.watched.measured_in(line)]
        return self._reached(self.table, self.watched, values) or self._stalled(self.table, self.watched, values)

    def _reached(self, table: StopTable, watched: Watched, values: list[float]) -> str | None:
        if table.target is None or not values or watched.improves(table.target, on=values[-1]):
            return None
        return f"{watched.metric} reached {values[-1]:.4g} (target {table.target:.4g})"

    def _stalled(self, table: StopTable, watched: Watched, values: list[float]) -> str | None:
        best, waited = math.nan, 0
        for value in values:
            better = watched.improves(value, best, table.threshold)
            best, waited = (value, 0) if better else (best, waited + 1)
        if table.patience is None or waited < table.patience:
            return None
        return f"{watched.metric} has not improved for {waited} evaluations"
