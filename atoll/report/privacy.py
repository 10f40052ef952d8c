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
from atoll.report import prose
from atoll.report.seed_groups import Group
from atoll.report.text_table import TextCell, TextColumn, TextRow, TextTable, number_columns, row, text_columns

NOT_COVERED = (
    "Training losses and metrics measured on clients' data in this report are not covered by epsilon: "
    "the accounted mechanism does not protect them, and publishing them tells more than it allows."
)
MEANING = (
    "Epsilon and delta are upper bounds by the accountant, rounded up, of several seeds the largest; an audit's figure "
    "is a lower bound, rounded down. Epsilons of different units or adjacencies are not comparable."
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
class Section:
    """What is claimed group by group, the attacks one by one, and where the two contradict each other."""

    claims: TextTable
    attacks: TextTable | None
    alarms: tuple[str, ...]


def section(groups: Sequence[Group]) -> Section | None:
    """The section on privacy; None where no run has an account or was attacked."""
    records = [(group, record) for group in groups for record in group.records]
    if not any(record.claims or record.attacks for _, record in records):
        return None
    heads = (TextColumn(c, "number" if c in ("epsilon", "delta") else "text", COLUMNS[c]) for c in list(COLUMNS)[:-1])
    held = TextTable((TextColumn("run"), *heads), tuple(r for group in groups for r in _rows(group)), style="wide")
    attacks = tuple(_attack(group, record, attack) for group, record in records for attack in record.attacks)
    return Section(held, _attacks(attacks) if attacks else None, tuple(alarms(groups)))


def group_claims(group: Group) -> tuple[Claim, ...]:
    """What holds for every seed of a group."""
    return weakest_claims({record.seed: record.claims for record in group.records})


def alarms(groups: Sequence[Group]) -> list[str]:
    """Audits that contradict the account, loudly."""
    every = [(f"{group.name}, seed {record.seed}", record) for group in groups for record in group.records]
    return contradictions([(name, record.claims, _bounds(record)) for name, record in every])


def contradictions(audited: Sequence[tuple[str, Sequence[Claim], Sequence[AttackBound]]]) -> list[str]:
    """What is said of the runs whose claims are below a bound that was found; more bounds may be so by chance."""
    looked_at = sum(one.epsilon is not None for _, _, bounds in audited for one in bounds)
    return [alarm(name, *pair, looked_at) for name, held, bounds in audited for pair in contradicted(held, bounds)]


def lines(groups: Sequence[Group]) -> list[str]:
    """For a terminal: one line for each claim, and what an audit found."""
    sentences = []
    for group in groups:
        name = f"{group.name}: " if len(groups) > 1 else ""
        claims = group_claims(group)
        sentences += [f"{name}{_claim_text(claim, claims)}" for claim in claims]
        for level in LEVELS:
            alone = "" if not claims or level in _kinds(claims) else f" ({ALONE} at this level)"
            sentences += [f"{name}audit: {finding}{alone}" for finding in _audit(group, level)]
    return sentences


def _claim_text(claim: Claim, beside: Sequence[Claim]) -> str:
    """The claim in a line; where one unit may be protected and another not, with the unit that is not."""
    several = {"client", "example"} <= {one.kind for one in beside}
    return f"{claim.unit} level: {claim.said}" if several and claim.epsilon is None else claim.said


def _rows(group: Group) -> list[TextRow]:
    claims = group_claims(group)
    audits = {level: _audit(group, level) for level in LEVELS}
    if not claims:
        return [_without(group.name, UNCLAIMED, audits["client"] + audits["example"])]
    alone = [level for level in LEVELS if audits[level] and level not in _kinds(claims)]
    return [
        *(_row(group.name, claim, claims, audits) for claim in claims),
        *(_without(group.name, f"{level} level: {ALONE}", audits[level]) for level in alone),
    ]


def _row(name: str, claim: Claim, claims: Sequence[Claim], audits: Mapping[str, tuple[str, ...]]) -> TextRow:
    simulated = claim.kind == "simulates"
    audit = () if simulated else audits[claim.kind] or ("not audited",)
    name, style = (SIMULATION, "after") if simulated else (name, "")
    if claim.epsilon is None:
        return _without(name, _claim_text(claim, claims), audit, style)
    *columns, assumed = claim_texts(claim).values()
    below = [TextCell(f"Audit: {line}") for line in audit]
    return row(name, *columns, style=style, below=[*below, TextCell(f"Assumed: {assumed}", hint=COLUMNS["assumed"])])


def _without(name: str, text: str, audit: Sequence[str], style: str = "") -> TextRow:
    """Words in place of an epsilon."""
    remarks = tuple(f"Audit: {line}" for line in audit)
    return row(name, TextCell(text, remarks=remarks, span=len(COLUMNS) - 1), style=style)


def _kinds(claims: Sequence[Claim]) -> list[str]:
    return [claim.kind for claim in claims]


def claim_texts(claim: Claim) -> dict[str, str]:
    """A claim that has an epsilon, column by column."""
    target = claim.calibrated
    calibrated = f"epsilon {target[0]:.6g} at delta {shown_delta(target[1])}" if target else ""
    budget = "" if claim.budget is None else f"budget {claim.budget:.6g}"
    rounds = "" if claim.rounds is None else f", {prose.counted(claim.rounds, 'round')}"
    by_column = {
        "epsilon": f"{'simulates ' if claim.kind == 'simulates' else ''}{shown_upper(claim.epsilon or 0.0)}",
        "delta": shown_delta(claim.delta),
        "unit, adjacency": ", ".join(filter(None, [claim.unit, claim.adjacency])),
        "sampler": claim.sampler,
        "mechanism": claim.mechanism,
        "accountant": f"{claim.accountant or prose.MISSING}{rounds}",
        "noise chosen for": "; ".join(filter(None, [calibrated, budget])),
        "assumed": "; ".join(claim.assumed),
    }
    return {column: by_column[column] or prose.MISSING for column in COLUMNS}


def _audit(group: Group, level: str) -> tuple[str, ...]:
    """The strongest bound of each attack on this unit over the seeds."""
    by_attack: dict[str, list[AttackBound]] = {}
    for one in (one for record in group.records for one in _bounds(record) if one.level == level):
        by_attack.setdefault(one.name, []).append(one)
    return tuple(_strongest(f"{name}, {level}", ones) for name, ones in by_attack.items())


def _strongest(name: str, ones: Sequence[AttackBound]) -> str:
    known = [one for one in ones if one.epsilon is not None]
    if not known:
        return f"{name}: no bound"
    top = max(known, key=lambda one: one.epsilon or 0.0)
    counts = f"; {top.counts}" if top.counts else ""
    return f"{name}: {top.said}{counts}{f'; the largest of {len(known)} seeds' if len(known) > 1 else ''}"


def _bounds(record: Record) -> tuple[AttackBound, ...]:
    return attack_bounds(record.run.get("privacy"), record.attacks)


def _attacks(rows: tuple[TextRow, ...]) -> TextTable:
    detected = TextColumn("found at false alarms", hint="the share of members found at this share of false alarms")
    return TextTable(
        (
            *text_columns("run"),
            *number_columns("seed"),
            *text_columns("attack", "on", "AUC"),
            detected,
            *text_columns("epsilon", "rests on", "note"),
        ),
        rows,
        notes=("AUC: 0.5 is a guess, 1 tells every member from the others. Bounds are lower bounds on epsilon.",),
        style="wide",
    )


def _attack(group: Group, record: Record, table: Mapping[str, Any]) -> TextRow:
    (bound,) = attack_bounds(None, [table])
    auc, ends = finite_or_none(table.get("auc")), table.get("auc_interval")
    both = [finite_or_none(end) for end in ends] if isinstance(ends, list) else []
    between = f" ({both[0]:.3f} to {both[1]:.3f})" if len(both) == 2 and None not in both else ""
    rates = table.get("tpr_at_fpr")
    shown = rates.items() if isinstance(rates, Mapping) else ()
    detected = "; ".join(f"{rate:.3g} at {fpr}" for fpr, value in shown if (rate := finite_or_none(value)) is not None)
    area = prose.MISSING if auc is None else f"{auc:.3f}{between}"
    about = group.name, record.seed, bound.name, f"{bound.level}s", area, detected or prose.MISSING
    return row(*about, bound.said, bound.counts or prose.MISSING, table.get("note") or "")
