"""When a run ends before its last round."""

from __future__ import annotations

import math
from dataclasses import dataclass

from atoll.experiment import StopTable
from atoll.schedules import History, Schedule


@dataclass(frozen=True)
class Stopping:
    """Early stopping on a metric, a target reached, or a schedule that has run out. A function of the record alone."""

    table: StopTable | None
    schedules: list[Schedule]

    def __call__(self, history: History) -> str | None:
        """Why to stop now, if so."""
        if any(s.finished(history) for s in self.schedules):
            return "the schedule has made its last reduction"
        if self.table is None:
            return None
        measured = [e[self.table.metric] for e in history if self.table.metric in e]
        values = [math.nan if v is None else v for v in measured]  # what is no number is never better
        return self._verdict(self.table, values)

    def _verdict(self, table: StopTable, values: list[float]) -> str | None:
        sign = 1.0 if table.better == "higher" else -1.0
        if values and table.target is not None and sign * values[-1] >= sign * table.target:
            return f"{table.metric} reached {values[-1]:.4g} (target {table.target:.4g})"
        best, waited = float("-inf"), 0
        for value in values:
            better = sign * value > best + table.threshold
            best, waited = (sign * value, 0) if better else (best, waited + 1)
        if waited >= table.patience:
            return f"{table.metric} has not improved for {waited} evaluations"
        return None
