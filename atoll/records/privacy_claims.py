"""What a run says of its privacy, as far as it may be printed: an epsilon that holds, or why there is none.

Read from the "privacy" block of run.json, and from the shorter one that results.json keeps. What is not plainly a
guarantee is none: without "holds", a finite epsilon and a delta there is no number.

>>> block = {"client": {"holds": True, "epsilon": 1.87004, "delta": 1e-3, "adjacency": "add-or-remove",
...                     "sampler": "poisson, 10 of 100 clients", "accountant": "pld"}}
>>> print(claims(block)[0].said)
epsilon 1.871 at delta 1e-3 (client level, add-or-remove, poisson, pld)
>>> print(claims({"client": {"holds": False, "why": "the noise is too small", "epsilon": 3.0}})[0].said)
not private: the noise is too small
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, Literal

from atoll.records.cells import Cell

ClaimKind = Literal["client", "example", "simulates"]
CLAIM_KINDS: tuple[ClaimKind, ...] = ("client", "example", "simulates")
EPSILON_KEYS: Mapping[ClaimKind, str] = {
    "client": "epsilon",
    "example": "example_epsilon",
    "simulates": "simulated_epsilon",
}
SIMULATION = "simulation only: the run made here is not private"
DIGITS = 4  # of a printed epsilon
_KEPT = 6  # digits that results.json keeps
_TEXTS = ("unit", "adjacency", "sampler", "mechanism", "accountant")


@dataclass(frozen=True)
class Claim:
    """One statement: a guarantee with everything that it depends on, or (`epsilon` is None) why there is none."""

    kind: ClaimKind
    epsilon: float | None = None
    delta: float = 0.0
    unit: str = "client"
    adjacency: str = ""
    sampler: str = ""
    mechanism: str = ""
    accountant: str = ""
    rounds: int | None = None
    budget: float | None = None
    calibrated: tuple[float, float] | None = None  # the epsilon and delta that the noise was chosen for
    assumed: tuple[str, ...] = ()
    why: str = ""

    @property
    def holds(self) -> bool:
        """Is it a guarantee of the run itself?"""
        return self.epsilon is not None and self.kind != "simulates"

    @property
    def said(self) -> str:
        """The claim in one line."""
        if self.epsilon is None:
            return f"{'simulates nothing private' if self.kind == 'simulates' else 'not private'}: {self.why}"
        ways = [f"{self.unit} level", self.adjacency, self.sampler.partition(",")[0], self.accountant]
        told = (
            f"epsilon {shown_upper(self.epsilon)} at delta {shown_delta(self.delta)} ({', '.join(filter(None, ways))})"
        )
        return f"simulates {told}: {SIMULATION}" if self.kind == "simulates" else told


def claims(block: Any, last: Mapping[str, Any] | None = None) -> tuple[Claim, ...]:
    """Every claim of a block; none where there is no block.

    `last`: the last line of the record. A run that goes on, or was killed, has made more rounds than its block says:
    then the bound in that line counts.
    """
    if not isinstance(block, Mapping):
        return ()
    found = [_until(_claim(kind, block[kind]), last or {}) for kind in CLAIM_KINDS if kind in block]
    if "simulates" in block:  # noise of another cohort: whatever else is said, this run does not have it
        found = [
            _without(one, "its noise is that of a larger system") if one.kind == "client" else one for one in found
        ]
    return tuple(found)


def weakest_claims(by_seed: Mapping[int, Sequence[Claim]]) -> tuple[Claim, ...]:
    """One claim of each kind for runs that differ in their seed: the weakest. If one run lacks it, it does not hold."""
    found = []
    for kind in CLAIM_KINDS:
        ones = {seed: next((c for c in cs if c.kind == kind), None) for seed, cs in by_seed.items()}
        there = [one for one in ones.values() if one]
        if not there:
            continue
        lacking = [seed for seed, one in ones.items() if one is None or one.epsilon is None]
        if lacking:
            reasons = dict.fromkeys(one.why if (one := ones[seed]) else "a seed has no account" for seed in lacking)
            where = "" if len(lacking) == len(ones) else f"seed {', '.join(map(str, lacking))}: "
            found.append(Claim(kind, unit=there[0].unit, why=where + "; ".join(reasons)))
        else:
            top = max(there, key=lambda one: one.epsilon or 0.0)
            found.append(replace(top, delta=max(one.delta for one in there)))
    return tuple(found)


def cell_claims(cell: Cell) -> tuple[Claim, ...]:
    """What all seeds of a suite's cell hold."""
    return weakest_claims({run.seed: claims(run.privacy) for run in cell.runs})


def claims_for_results(block: Any, last: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """What results.json keeps of a block, in the same form; epsilon and delta are rounded up."""
    found: dict[str, dict[str, Any]] = {}
    for one in claims(block, last):
        if one.epsilon is None:
            found[one.kind] = {"holds": False, "unit": one.unit, "why": one.why}
        else:
            told = {key: value for key, value in asdict(one).items() if key in (*_TEXTS, "rounds") and value}
            numbers = {"epsilon": round_up(one.epsilon, _KEPT), "delta": round_up(one.delta, _KEPT)}
            found[one.kind] = {"holds": True, **numbers, **told}
    return found


def round_up(value: float, digits: int = DIGITS) -> float:
    """The least number of so many digits that is not below it.

    >>> round_up(1.8700001), round_up(1.87)
    (1.871, 1.87)
    """
    return float(Context(prec=digits, rounding=ROUND_CEILING).plus(Decimal(repr(float(value)))))


def round_down(value: float, digits: int = DIGITS) -> float:
    """The greatest number of so many digits that is not above it."""
    return float(Context(prec=digits, rounding=ROUND_FLOOR).plus(Decimal(repr(float(value)))))


def shown_upper(value: float) -> str:
    """An upper bound as text: never below it."""
    return _plain(round_up(value), 1e-4)


def shown_lower(value: float) -> str:
    """A lower bound as text: never above it."""
    return _plain(round_down(value), 1e-4)


def shown_delta(delta: float) -> str:
    """A delta as people write it, rounded up.

    >>> shown_delta(0.001), shown_delta(1 / 3000), shown_delta(0)
    ('1e-3', '3.334e-4', '0')
    """
    return _plain(round_up(delta), 0.01)


def finite_or_none(value: Any) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else None


def _plain(value: float, least: float) -> str:
    if value == 0 or least <= abs(value) < 1e6:
        return f"{Decimal(repr(value)).normalize():f}"
    base, _, power = f"{value:.{DIGITS - 1}e}".partition("e")
    return f"{base.rstrip('0').rstrip('.')}e{int(power)}"


def _claim(kind: ClaimKind, part: Any) -> Claim:
    table: Mapping[str, Any] = part if isinstance(part, Mapping) else {}
    unit = str(table.get("unit") or ("example" if kind == "example" else "client"))
    epsilon, delta = finite_or_none(table.get("epsilon")), finite_or_none(table.get("delta"))
    if table.get("holds") is not True:
        return Claim(kind, unit=unit, why=str(table.get("why") or "the run's account does not say that it is"))
    if epsilon is None or epsilon < 0 or delta is None or not 0 <= delta < 1:
        return Claim(kind, unit=unit, why=str(table.get("why") or "no finite epsilon holds at this delta"))
    texts = {key: str(table[key]) for key in _TEXTS if key != "unit" and table.get(key) is not None}
    target = table.get("calibrated")
    wanted = [finite_or_none(target.get(key)) for key in ("epsilon", "delta")] if isinstance(target, Mapping) else []
    return Claim(
        kind, epsilon, delta, unit, **texts,
        rounds=table["rounds"] if isinstance(table.get("rounds"), int) else None,
        budget=finite_or_none(table.get("budget")),
        calibrated=(wanted[0], wanted[1]) if wanted and wanted[0] is not None and wanted[1] is not None else None,
        assumed=tuple(map(str, table.get("assumed") or ())),
    )  # fmt: skip


def _until(one: Claim, last: Mapping[str, Any]) -> Claim:
    """The claim for all rounds that the record has."""
    made = last.get("round")
    if one.epsilon is None or one.rounds is None or not isinstance(made, int) or made <= one.rounds:
        return one
    spent = finite_or_none((last.get("privacy") or {}).get(EPSILON_KEYS[one.kind]))
    if spent is None:
        return _without(one, f"its account covers {one.rounds} of the {made} rounds made")
    return replace(one, epsilon=max(spent, one.epsilon), rounds=made)


def _without(one: Claim, why: str) -> Claim:
    return one if one.epsilon is None else Claim(one.kind, unit=one.unit, why=why)
