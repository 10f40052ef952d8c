"""How runs and the cells of a sweep stand, in one set of words.

A run is "running", "finished", "stopped early: why", "interrupted" or "failed: why"; a cell that was not begun waits.

>>> reached_end(stopped_early("the budget is used up")), why_failed(failed("no memory"))
(True, 'no memory')
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WAITING = "waiting"
RUNNING = "running"
FINISHED = "finished"
INTERRUPTED = "interrupted"
FAILED = "failed"
_STOPPED_EARLY = "stopped early"


def stopped_early(why: str) -> str:
    """A run ended by its own rule before the last round."""
    return f"{_STOPPED_EARLY}: {why}"


def failed(why: str) -> str:
    """A run ended by an error: its class in run.json, the whole of it in sweep.json."""
    return f"{FAILED}: {why}"


def why_failed(status: str) -> str | None:
    """The error of a status that names one."""
    return status.removeprefix(f"{FAILED}: ") if status.startswith(FAILED) else None


def reached_end(status: str) -> bool:
    """Is there nothing left to do for a run with this status?"""
    return status == FINISHED or ended_by_rule(status)


def ended_by_rule(status: str) -> bool:
    """Was the run ended by its own rule, and not by its last round?"""
    return status.startswith(_STOPPED_EARLY)


def ended(info: Mapping[str, Any] | None) -> bool:
    """The same of what run.json says; a run that was not begun (None) has not ended."""
    return info is not None and reached_end(str(info["status"]))
