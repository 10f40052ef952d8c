"""What attacks found: lower bounds on epsilon with their confidence, and whether one contradicts what was accounted.

>>> from atoll.records.privacy_claims import Claim
>>> found = attack_bounds({"audit": {"method": "canaries", "epsilon_lower": 2.5, "confidence": 0.95, "delta": 1e-3}})
>>> contradicted((Claim("client", epsilon=3.0, delta=1e-3),), found)
[]
>>> [one.name for _, one in contradicted((Claim("client", epsilon=2.0, delta=1e-3),), found)]
['canaries']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll.records.privacy_claims import (
    Claim,
    finite_or_none,
    round_down,
    round_up,
    shown_delta,
    shown_lower,
    shown_upper,
)

_COUNTS = {"guesses": "guesses", "canaries": "canaries", "members": "members", "others": "others"}


@dataclass(frozen=True)
class AttackBound:
    """One attack: epsilon is at least this, with this confidence. None: it gives no bound, or states no confidence."""

    name: str
    level: str  # "client" or "example"
    epsilon: float | None
    confidence: float
    delta: float | None
    counts: str = ""

    @property
    def said(self) -> str:
        """The bound in one line."""
        if self.epsilon is None:
            return "no bound"
        at = "" if self.delta is None else f", delta {shown_delta(self.delta)}"
        return f"at least {shown_lower(self.epsilon)} ({percent(self.confidence)} confidence{at})"


def attack_bounds(block: Any, attacks: Sequence[Mapping[str, Any]] = ()) -> tuple[AttackBound, ...]:
    """The canaries of a run's block, then the attacks of its audit.json."""
    planted = block.get("audit") if isinstance(block, Mapping) else None
    first = (
        [_bound(planted, str(planted.get("method") or "canaries"), "client")] if isinstance(planted, Mapping) else []
    )
    rest = [_bound(one, str(one.get("name") or "attack"), str(one.get("level") or "client")) for one in attacks]
    return (*first, *rest)


def audit_for_results(block: Any) -> dict[str, Any]:
    """What results.json keeps of the canaries, in the same form; the bound is rounded down."""
    for one in attack_bounds(block):
        if one.epsilon is not None:
            delta = {} if one.delta is None else {"delta": round_up(one.delta, 6)}
            return {
                "audit": {
                    "method": one.name,
                    "epsilon_lower": round_down(one.epsilon, 6),
                    "confidence": one.confidence,
                    **delta,
                }
            }
    return {}


def contradicted(claims: Sequence[Claim], found: Sequence[AttackBound]) -> list[tuple[Claim, AttackBound]]:
    """The bounds above what was accounted for the same unit; one at a smaller delta than that of the claim is none."""
    return [
        (claim, one)
        for claim in claims
        for one in found
        if claim.holds and claim.epsilon is not None and one.epsilon is not None
        if claim.kind == one.level and (one.delta is None or one.delta >= claim.delta) and one.epsilon > claim.epsilon
    ]


def alarm(name: str, claim: Claim, one: AttackBound, looked_at: int = 1) -> str:
    """The loud line."""
    chance, attack = percent(1 - one.confidence), one.name[:1].upper() + one.name[1:]
    several = (
        f" {looked_at} bounds were looked at: by chance one of them is too high in up to "
        f"{percent(min(1.0, looked_at * (1 - one.confidence)))} of such reports."
        if looked_at > 1
        else ""
    )
    return (
        f"{name}: the audit contradicts the accounted epsilon: there is a mistake in the mechanism, or this is one of "
        f"the {chance} of audits whose bound is too high. {attack} found {one.said}; "
        f"accounted is {shown_upper(claim.epsilon or 0.0)} at delta {shown_delta(claim.delta)}.{several}"
    )


def percent(share: float) -> str:
    """A share in per cent.

    >>> percent(0.95), percent(1 - 0.95)
    ('95 %', '5 %')
    """
    return f"{100 * share:.3g} %"


def _bound(table: Mapping[str, Any], name: str, level: str) -> AttackBound:
    confidence = finite_or_none(table.get("confidence"))
    return AttackBound(
        name,
        level,
        None if confidence is None else finite_or_none(table.get("epsilon_lower")),
        confidence or 0.0,
        finite_or_none(table.get("delta")),
        _counts(table),
    )


def _counts(table: Mapping[str, Any]) -> str:
    """How much the bound rests on."""
    told = [f"{table[key]:,} {word}" for key, word in _COUNTS.items() if isinstance(table.get(key), int)]
    if isinstance(table.get("correct"), int) and isinstance(table.get("guesses"), int):
        told[0] = f"{table['correct']:,} of {told[0]} right"
    return ", ".join(told)
