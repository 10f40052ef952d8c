"""Another clock for rounds that were made: when everybody counts whatever the time, only the time is another."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.clock.clock import Clock
from atoll.clock.clock_table import ClockTable
from atoll.clock.timeline import Timeline


def why_not_replayable(table: ClockTable) -> str | None:
    """Why who is in the sum may depend on this clock; None if everybody always is."""
    reasons = {
        "deadline": table.deadline is not None,
        "over_selection": table.over_selection > 1,
        "dropout": table.dropout > 0,
        "availability": table.availability is not None,
        "min_reports": table.min_reports > 1,
    }
    return next((f"clock.{name} decides who is in the sum" for name, holds in reasons.items() if holds), None)


def retime(clock: Clock, timelines: Sequence[Timeline]) -> list[Timeline]:
    """The same work of the same clients, timed by this clock, from the beginning on."""
    now, retimed = 0.0, []
    for number, old in enumerate(timelines):
        pace = old.seconds_per_step if clock.seconds_per_step is None else clock.seconds_per_step
        compressing = old.seconds_to_compress if clock.seconds_to_compress is None else clock.seconds_to_compress
        new = clock.timeline(number, old.ids, old.steps, old.down, old.up, now, pace, old.overhead, compressing)
        retimed.append(new)
        now = new.end
    return retimed
