"""Another clock for rounds that were made: when everybody counts whatever the time, only the time is another."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from atoll.clock.clock import Clock
from atoll.clock.clock_table import ClockTable
from atoll.clock.timeline import Timeline


def changed_table(written: Mapping[str, Any], assignments: Sequence[str]) -> ClockTable | None:
    """[clock] with changes such as "clock.up_mbps=10"; None for what is no such change, or leaves no such table."""
    table = dict(written)
    for assignment in assignments:
        path, _, text = assignment.partition("=")
        room, _, key = path.strip().partition(".")
        if room != "clock" or "." in key or not text.strip():
            return None
        table[key] = _value(text.strip())
    try:
        return ClockTable.model_validate(table, strict=True)
    except ValidationError:
        return None


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def why_not_replayable(table: ClockTable) -> str | None:
    """Why who is in the sum may depend on this clock; None if everybody always is."""
    reasons = {
        "deadline": table.deadline is not None,
        "over_selection": table.over_selection > 1,
        "dropout": table.dropout > 0,
        "availability": table.availability is not None,
    }
    return next((f"clock.{name} decides who is in the sum" for name, holds in reasons.items() if holds), None)


def retime(clock: Clock, timelines: Sequence[Timeline]) -> list[Timeline]:
    """The same work of the same clients, timed by this clock, from the beginning on."""
    now, retimed = 0.0, []
    for number, old in enumerate(timelines):
        pace = old.seconds_per_step if clock.seconds_per_step is None else clock.seconds_per_step
        new = clock.timeline(number, old.ids, old.steps, old.down, old.up, now, pace)
        retimed.append(new)
        now = new.end
    return retimed
