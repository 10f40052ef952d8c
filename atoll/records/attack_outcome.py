"""An attack on the model as a run's record tells it: who, knowing what, with which success, and how long it lasted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll.records.nested import find, has, number_or_nan

_HALF = 0.5  # a backdoor is gone once its success is below this share of what it was when the attackers left


@dataclass(frozen=True)
class AttackOutcome:
    """Of one run. `success` is NaN where the attack wants no class."""

    name: str
    knowledge: str  # what the attackers see before they act
    count: int
    population: int
    start: int
    stop: int | None  # the last round of the attack; None: the run's
    success: float = math.nan  # at the last evaluation
    at_stop: float = math.nan  # at the last evaluation before the attackers left
    worst_honest: float = math.nan  # the leading metric of the worst of the honest clients, at the last evaluation
    survived: int | None = None  # rounds after `stop` until it was gone; None: still there, or they did not leave

    @property
    def said(self) -> str:
        """In one line."""
        last = "the end" if self.stop is None else f"round {self.stop}"
        who = f"{self.count} of {self.population} clients"
        return f"{self.name} by {who}, from round {self.start} to {last}; it knows {self.knowledge}"

    @property
    def survival(self) -> str:
        """In words; nothing where the attackers did not leave, or wanted no class."""
        if self.stop is None or math.isnan(self.at_stop):
            return ""
        return "still there" if self.survived is None else f"gone after {self.survived}"


def attack_outcome(run: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> AttackOutcome | None:
    """Of a run.json and its record; None where nobody attacked.

    >>> run = {"attack": {"name": "backdoor", "knowledge": "its own update", "count": 1, "population": 5,
    ...                   "start": 1, "stop": 2}}
    >>> lines = [{"round": i + 1, "attack": {"success": s}} for i, s in enumerate((0.5, 0.9, 0.8, 0.4))]
    >>> attack_outcome(run, lines).survived
    2
    """
    block = run.get("attack")
    if not isinstance(block, Mapping):
        return None
    stop = block.get("stop")
    facts: dict[str, Any] = {key: str(block.get(key, "")) for key in ("name", "knowledge")}
    facts |= {key: int(block.get(key, 0)) for key in ("count", "population", "start")}
    success = _measured(lines, "success")
    at_stop = next((value for number, value in reversed(success) if stop is None or number <= stop), math.nan)
    worst = _measured(lines, "worst_honest")
    return AttackOutcome(
        **facts,
        stop=stop,
        success=success[-1][1] if success else math.nan,
        at_stop=at_stop,
        worst_honest=worst[-1][1] if worst else math.nan,
        survived=None if stop is None else _survived(success, stop, at_stop),
    )


def attack_for_results(run: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What results keep of it; {} where nobody attacked. What is no number is left out."""
    outcome = attack_outcome(run, lines)
    if outcome is None:
        return {}
    numbers = {"success": outcome.success, "at_stop": outcome.at_stop, "worst_honest": outcome.worst_honest}
    measured: dict[str, Any] = {key: value for key, value in numbers.items() if math.isfinite(value)}
    lasted = {"survived": outcome.survived} if outcome.survived is not None else {}
    share = outcome.count / max(1, outcome.population)
    return {"name": outcome.name, "knowledge": outcome.knowledge, "share": share, **measured, **lasted}


def attacks_side_by_side(a: str, b: str) -> str:
    """What both sides say of attacks, once where it is the same; nothing where neither was attacked.

    >>> attacks_side_by_side("zero by 1 of 5 clients", "")
    'A zero by 1 of 5 clients; B nobody'
    """
    if not a and not b:
        return ""
    return a if a == b else f"A {a or 'nobody'}; B {b or 'nobody'}"


def _measured(lines: Sequence[Mapping[str, Any]], key: str) -> list[tuple[int, float]]:
    path = ("attack", key)
    return [(int(line["round"]), number_or_nan(find(line, *path))) for line in lines if has(line, path)]


def _survived(success: Sequence[tuple[int, float]], stop: int, at_stop: float) -> int | None:
    """Rounds from the last one of the attack to the first whose success is below half of what it was then."""
    return next((n - stop for n, value in success if n > stop and value < _HALF * at_stop), None)
