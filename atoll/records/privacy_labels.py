"""What two sides promise, side by side. A number that was paid for with privacy is not like one that was not.

>>> promises_side_by_side((Claim("client", 4.0, 1e-3),), ())
'A holds epsilon 4 at delta 1e-3, B is not private: they do not promise the same.'
>>> promises_side_by_side((Claim("client", 4.0, 1e-3),), (Claim("client", 4.0, 1e-3),))
'A and B alike: holds epsilon 4 at delta 1e-3.'
"""

from __future__ import annotations

from collections.abc import Sequence

from atoll.records.privacy_claims import Claim, shown_delta, shown_upper


def promised(held: Sequence[Claim], whole: bool = False) -> str:
    """What is held, in few words; `whole`: and by whom, against which neighbours.

    >>> promised((Claim("example", 2.0, 1e-4, unit="example"),))
    'holds epsilon 2 at delta 1e-4 for each example'
    >>> promised((Claim("client", why="noise of a larger system"), Claim("simulates", 2.0, 1e-6)))
    'simulates epsilon 2 at delta 1e-6 and is not private'
    """
    said = [_said(one, whole) for one in held if one.epsilon is not None]
    return " and ".join(said if any(one.holds for one in held) else [*said, "is not private"])


def same_promises(a: Sequence[Claim], b: Sequence[Claim]) -> bool:
    """Do both promise the same, to the printed digits?"""
    return promised(a, whole=True) == promised(b, whole=True)


def promises_side_by_side(a: Sequence[Claim], b: Sequence[Claim]) -> str:
    """One line of both; nothing where neither has an epsilon."""
    if all(one.epsilon is None for one in (*a, *b)):
        return ""
    if same_promises(a, b):
        return f"A and B alike: {promised(a)}."
    whole = promised(a) == promised(b)
    return f"A {promised(a, whole)}, B {promised(b, whole)}: they do not promise the same."


def _said(one: Claim, whole: bool) -> str:
    verb = "simulates" if one.kind == "simulates" else "holds"
    unit = f" for each {one.unit}" if whole or one.unit != "client" else ""
    against = f" ({one.adjacency})" if whole and one.adjacency else ""
    return f"{verb} epsilon {shown_upper(one.epsilon or 0.0)} at delta {shown_delta(one.delta)}{unit}{against}"
