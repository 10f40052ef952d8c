"""Attacks on the model, run by run: who attacked, what they knew, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from atoll.records import AttackOutcome
from atoll.report import prose
from atoll.report.seed_groups import Group
from atoll.report.text_table import TextRow, TextTable, number_columns, row, text_columns

MEANING = (
    "Success: the share of test examples that get the class which the attack wants, at the last round (mean over "
    "seeds); empty where it wants none. After the attackers left: rounds until success was below half of what it was "
    "then. Worst honest client: its leading metric at the last round."
)


def attack_table(groups: Sequence[Group]) -> TextTable | None:
    """None where nobody attacked."""
    attacked = [(one, outcomes) for one in groups if (outcomes := _outcomes(one))]
    if not attacked:
        return None
    heads = (
        *text_columns("run", "attack", "attackers", "rounds", "they know"),
        *number_columns("success", "worst honest client"),
        *text_columns("after they left"),
    )
    return TextTable(heads, tuple(_row(*pair) for pair in attacked), notes=(MEANING,), style="wide")


def attack_lines(groups: Sequence[Group]) -> list[str]:
    """For a terminal: one line for each group that was attacked."""
    found = []
    for one in groups:
        if outcomes := _outcomes(one):
            named = f"{one.name}: " if len(groups) > 1 else ""
            success = _mean([o.success for o in outcomes])
            measured = f"; success {success}" if success else ""
            lasted = f"; after they left: {_lasted(outcomes)}" if _lasted(outcomes) else ""
            found.append(f"{named}attack {outcomes[0].said}{measured}{lasted}")
    return found


def group_attack(group: Group) -> str:
    """What is said of the attack on a group; nothing where there was none."""
    outcomes = _outcomes(group)
    return outcomes[0].said if outcomes else ""


def _outcomes(group: Group) -> list[AttackOutcome]:
    return [record.attack for record in group.records if record.attack is not None]


def _row(group: Group, outcomes: Sequence[AttackOutcome]) -> TextRow:
    one = outcomes[0]
    rounds = f"{one.start} to {'the end' if one.stop is None else one.stop}"
    measured = _mean([o.success for o in outcomes]), _mean([o.worst_honest for o in outcomes])
    who = f"{one.count} of {one.population}"
    return row(group.name, one.name, who, rounds, one.knowledge, *measured, _lasted(outcomes))


def _mean(values: Sequence[float]) -> str:
    finite = [value for value in values if math.isfinite(value)]
    return prose.significant(fmean(finite)) if finite else ""


def _lasted(outcomes: Sequence[AttackOutcome]) -> str:
    return ", ".join(dict.fromkeys(o.survival for o in outcomes if o.survival))
