"""What the runs cost in privacy: what was accounted, beside what attacks found; an epsilon that holds, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll.records import (
    SIMULATION,
    AttackBound,
    Claim,
    Record,
    alarm,
    attack_bounds,
    contradicted,
    finite_or_none,
    shown_delta,
    shown_upper,
    weakest_claims,
)
from atoll.report.final_table import MISSING
from atoll.report.seed_groups import Group

NOT_COVERED = (
    "Training losses and metrics measured on clients' data in this report are not covered by epsilon: "
    "the accounted mechanism does not protect them, and publishing them tells more than it allows."
)
MEANING = (
    "Epsilon and delta are upper bounds by the accountant, rounded up; an audit's figure is a lower bound on epsilon, "
    "found by attacking the run, rounded down. Epsilons of different units or adjacencies are not comparable."
)
ALONE = "no epsilon is accounted"
LEVELS = ("client", "example")
UNCLAIMED = "nothing is claimed: the run has no privacy account"
COLUMNS: Mapping[str, str] = {
    "epsilon": "upper bound for all rounds made; of several seeds the largest",
    "delta": "the chance with which the bound on epsilon may fail",
    "unit, adjacency": "what is protected, all of a client or one example, and which data sets must look alike",
    "sampler": "how the clients of a round were really drawn",
    "mechanism": "what was added, and its noise multiplier",
    "accountant": "who added up the cost, and of how many rounds",
    "noise chosen for": "what the noise was calibrated to, and the budget that stops the run before it is overspent",
    "assumed": "what the epsilon rests on",
}


@dataclass(frozen=True)
class PrivacyRow:
    """One claim of one group: its cells in the order of COLUMNS, or (without cells) words in their place."""

    name: str
    kind: str  # "client", "example", "simulates", or "" for a group without an account
    cells: tuple[str, ...]
    said: str
    audit: tuple[str, ...]


@dataclass(frozen=True)
class Attack:
    """One attack of an audit.json, as text."""

    group: str
    seed: int
    name: str
    level: str
    auc: str
    rates: str
    bound: str
    counts: str
    note: str


@dataclass(frozen=True)
class Section:
    """All of it."""

    rows: tuple[PrivacyRow, ...]
    attacks: tuple[Attack, ...]
    alarms: tuple[str, ...]


def section(groups: Sequence[Group]) -> Section | None:
    """The section on privacy; None where no run has an account or was attacked."""
    if not any(_accounted(record) or record.attacks for group in groups for record in group.records):
        return None
    rows = tuple(row for group in groups for row in _rows(group))
    attacks = tuple(
        _attack(group, record, table) for group in groups for record in group.records for table in record.attacks
    )
    return Section(rows, attacks, tuple(alarms(groups)))


def group_claims(group: Group) -> tuple[Claim, ...]:
    """What holds for every seed of a group."""
    return weakest_claims({record.seed: record.claims for record in group.records})


def alarms(groups: Sequence[Group]) -> list[str]:
    """Audits that contradict the account, loudly."""
    every = [(group, record, _bounds(record)) for group in groups for record in group.records]
    looked_at = sum(one.epsilon is not None for _, _, found in every for one in found)
    return [
        alarm(f"{group.name}, seed {record.seed}", claim, one, looked_at)
        for group, record, found in every
        for claim, one in contradicted(record.claims, found)
    ]


def lines(groups: Sequence[Group]) -> list[str]:
    """For a terminal: one line for each claim, and what an audit found."""
    said = []
    for group in groups:
        name = f"{group.name}: " if len(groups) > 1 else ""
        found = group_claims(group)
        said += [f"{name}{_told(claim, found)}" for claim in found]
        for level in LEVELS:
            alone = "" if not found or level in _kinds(found) else f" ({ALONE} at this level)"
            said += [f"{name}audit: {told}{alone}" for told in _audit(group, level)]
    return said


def _told(claim: Claim, beside: Sequence[Claim]) -> str:
    """The claim in a line; where one unit may be protected and another not, with the unit that is not."""
    several = {"client", "example"} <= {one.kind for one in beside}
    return f"{claim.unit} level: {claim.said}" if several and claim.epsilon is None else claim.said


def _accounted(record: Record) -> bool:
    return bool(record.claims)


def _rows(group: Group) -> list[PrivacyRow]:
    found = group_claims(group)
    audits = {level: _audit(group, level) for level in LEVELS}
    if not found:
        return [PrivacyRow(group.name, "", (), UNCLAIMED, audits["client"] + audits["example"])]
    rows = []
    for claim in found:
        audit = () if claim.kind == "simulates" else audits[claim.kind] or ("not audited",)
        name = SIMULATION if claim.kind == "simulates" else group.name
        said = "" if claim.epsilon is not None else _told(claim, found)
        rows.append(PrivacyRow(name, claim.kind, _cells(claim), said, audit))
    alone = [level for level in LEVELS if audits[level] and level not in _kinds(found)]
    return rows + [PrivacyRow(group.name, level, (), f"{level} level: {ALONE}", audits[level]) for level in alone]


def _kinds(found: Sequence[Claim]) -> list[str]:
    return [claim.kind for claim in found]


def _cells(claim: Claim) -> tuple[str, ...]:
    if claim.epsilon is None:
        return ()
    target = claim.calibrated
    calibrated = f"epsilon {target[0]:.6g} at delta {shown_delta(target[1])}" if target else ""
    budget = "" if claim.budget is None else f"budget {claim.budget:.6g}"
    told = {
        "epsilon": f"{'simulates ' if claim.kind == 'simulates' else ''}{shown_upper(claim.epsilon)}",
        "delta": shown_delta(claim.delta),
        "unit, adjacency": ", ".join(filter(None, [claim.unit, claim.adjacency])),
        "sampler": claim.sampler,
        "mechanism": claim.mechanism,
        "accountant": claim.accountant + ("" if claim.rounds is None else f", {claim.rounds:,} rounds"),
        "noise chosen for": "; ".join(filter(None, [calibrated, budget])),
        "assumed": "; ".join(claim.assumed),
    }
    return tuple(told[column] or MISSING for column in COLUMNS)


def _audit(group: Group, level: str) -> tuple[str, ...]:
    """The strongest bound of each attack on this unit over the seeds."""
    found: dict[str, list[AttackBound]] = {}
    for one in (one for record in group.records for one in _bounds(record) if one.level == level):
        found.setdefault(one.name, []).append(one)
    return tuple(_strongest(f"{name}, {level}", ones) for name, ones in found.items())


def _strongest(name: str, ones: Sequence[AttackBound]) -> str:
    known = [one for one in ones if one.epsilon is not None]
    if not known:
        return f"{name}: no bound"
    top = max(known, key=lambda one: one.epsilon or 0.0)
    counts = f"; {top.counts}" if top.counts else ""
    return f"{name}: {top.said}{counts}{f'; the largest of {len(known)} seeds' if len(known) > 1 else ''}"


def _bounds(record: Record) -> tuple[AttackBound, ...]:
    return attack_bounds(record.run.get("privacy"), record.attacks)


def _attack(group: Group, record: Record, table: Mapping[str, Any]) -> Attack:
    (bound,) = attack_bounds(None, [table])
    auc, ends = finite_or_none(table.get("auc")), table.get("auc_interval")
    both = [finite_or_none(end) for end in ends] if isinstance(ends, list) else []
    between = f" ({both[0]:.3f} to {both[1]:.3f})" if len(both) == 2 and None not in both else ""
    rates = table.get("tpr_at_fpr")
    shown = rates.items() if isinstance(rates, Mapping) else ()
    return Attack(
        group.name,
        record.seed,
        bound.name,
        bound.level,
        MISSING if auc is None else f"{auc:.3f}{between}",
        "; ".join(f"{rate:.3g} at {fpr}" for fpr, value in shown if (rate := finite_or_none(value)) is not None)
        or MISSING,
        bound.said,
        bound.counts or MISSING,
        str(table.get("note") or ""),
    )
