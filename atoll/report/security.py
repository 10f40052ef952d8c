"""What was seen of the clients, run by run: FedEval's security level with its reason, and what a protocol took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from atoll.records import LEVELS, Record, SecurityLevel, find, number_or_nan, weakest_level
from atoll.report import prose
from atoll.report.seed_groups import Group
from atoll.report.text_table import TextCell, TextColumn, TextRow, TextTable, number_columns, row, text_columns

MEANING = (
    "FedEval's levels, by what the server learns: " + "; ".join(f"{i}: {seen}" for i, seen in enumerate(LEVELS)) + "."
)
_COSTS = {("up",): 1e-3, ("down",): 1e-3, ("seconds", "client"): 1e3, ("seconds", "server"): 1e3}  # kB, ms


@dataclass(frozen=True)
class SecuritySection:
    """The levels, what protocols took where there were any, and what must not be overlooked."""

    levels: TextTable
    costs: TextTable | None
    alarms: tuple[str, ...]


def security_section(groups: Sequence[Group]) -> SecuritySection | None:
    """None where no run says anything."""
    known = [(one, level) for one in groups if (level := group_level(one)) is not None]
    if not known:
        return None
    heads = (TextColumn("run"), TextColumn("level", "number", "of several seeds the lowest"), *text_columns("because"))
    levels = TextTable(heads, tuple(_row(one, level) for one, level in known), notes=(MEANING,), style="wide")
    summed = [one for one in groups if one.records[0].run.get("secure")]
    return SecuritySection(levels, _costs(summed) if summed else None, tuple(insecure_alarms(groups)))


def group_level(group: Group) -> SecurityLevel | None:
    """What holds for every seed of a group."""
    return weakest_level(record.security for record in group.records)


def insecure_alarms(groups: Sequence[Group]) -> list[str]:
    """Runs whose keys anybody can draw again, loudly."""
    named = [one.name for one in groups if any(r.security is not None and r.security.insecure for r in one.records)]
    if not named:
        return []
    return [
        f"INSECURE: {prose.listed(named)} drew keys and masks from the run's seed (secure.insecure_seed = true). "
        "Whoever knows the file can unmask every update. For tests only."
    ]


def security_lines(groups: Sequence[Group]) -> list[str]:
    """For a terminal: one line for each group whose sums were secure."""
    found = []
    for one in groups:
        level = group_level(one)
        if level is not None and one.records[0].run.get("secure"):
            found.append(f"{one.name + ': ' if len(groups) > 1 else ''}security {level.said}")
    return found


def _row(group: Group, level: SecurityLevel) -> TextRow:
    seen = {"The server sees": level.server, "A client sees": level.clients, "Assumed": level.assumes}
    below = [TextCell(f"{who}: {what}.".replace("..", ".")) for who, what in seen.items() if what]
    return row(group.name, level.level, level.reason, below=below)


def _costs(groups: Sequence[Group]) -> TextTable:
    heads = (
        *text_columns("run", "protocol"),
        *number_columns("asked", "in the sum", "lost", "void rounds", group="Clients"),
        *number_columns("kB up", "kB down", "ms", group="A client, a round"),
        *number_columns("ms", group="The server"),
        *text_columns("how it is known"),
    )
    notes = (
        "Means over rounds and seeds. Lost: clients that did not stay to the end, in all rounds. Milliseconds are a "
        "processor's, all clients one after the other in one process. Void: too few stayed, nothing was applied.",
    )
    return TextTable(heads, tuple(_cost_row(one) for one in groups), notes=notes, style="wide")


def _cost_row(group: Group) -> TextRow:
    lines = [line["secure"] for record in group.records for line in record.rounds if "secure" in line]
    block = group.records[0].run["secure"]
    means = [
        prose.significant(fmean(number_or_nan(find(line, *at)) for line in lines) * by) for at, by in _COSTS.items()
    ]
    asked, inside = (prose.significant(fmean(line[name] for line in lines)) for name in ("asked", "in_sum"))
    lost, void = (sum(int(line.get(name, 0)) for line in lines) for name in ("lost", "void"))
    return row(group.name, block["protocol"], asked, inside, lost, void, *means, _known(group.records[0]))


def _known(record: Record) -> str:
    if find(record.run, "secure", "mode") == "real":
        return "counted: every message was sent, as bytes"
    fit = find(record.run, "secure", "cost_model") or {}
    sizes = f"up to {fit.get('clients')} clients and {fit.get('numbers'):,} numbers"
    return f"a model fitted to {fit.get('runs')} real runs on this machine, of {sizes}"
