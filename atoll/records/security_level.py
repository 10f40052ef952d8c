"""FedEval's security level as a run's record states it: of several runs the weakest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from atoll.records.nested import find, number_or_nan

LEVELS = ("all data", "every client's update", "only the aggregate", "nothing")  # what the server learns


@dataclass(frozen=True)
class SecurityLevel:
    """What was seen, and by whom."""

    level: int
    reason: str
    server: str = ""
    clients: str = ""
    assumes: str = ""
    insecure: bool = False  # keys came from the run's seed

    @property
    def said(self) -> str:
        """In one line."""
        return f"level {self.level} ({self.reason})"


def security_level(run: Mapping[str, Any]) -> SecurityLevel | None:
    """Of a run.json; None where an older version wrote it.

    >>> security_level({"security": {"level": 1, "reason": "the server sees every update"}}).said
    'level 1 (the server sees every update)'
    """
    block, secure = run.get("security"), run.get("secure")
    if not isinstance(block, Mapping) or block.get("level") not in range(len(LEVELS)):
        return None
    texts = {key: str(block.get(key) or "") for key in ("reason", "server", "clients", "assumes")}
    return SecurityLevel(int(block["level"]), insecure=bool((secure or {}).get("insecure_seed")), **texts)


def security_for_results(run: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What results keep of a run: its level, and what its protocol took in a round, bytes and seconds, on average.

    >>> took = {"up": 8.0, "down": 4.0, "seconds": {"client": 0.5, "server": 0.25}}
    >>> info = {"security": {"level": 2, "reason": "secagg"}, "secure": {"protocol": "secagg", "mode": "real"}}
    >>> security_for_results(info, [{"secure": took}])["client_seconds"]
    0.5
    """
    level, block = security_level(run), run.get("secure")
    if level is None:
        return {}
    kept: dict[str, Any] = {"level": level.level}
    if level.insecure:
        kept["insecure_seed"] = True
    told = [line["secure"] for line in lines if "secure" in line]
    if not isinstance(block, Mapping) or not told:
        return kept
    paths: dict[str, tuple[str, ...]] = {"up": ("up",), "down": ("down",)}
    paths |= {f"{who}_seconds": ("seconds", who) for who in ("client", "server")}
    if any("role" in line["seconds"] for line in told):
        paths["role_seconds"] = ("seconds", "role")
    means = {name: fmean(number_or_nan(find(line, *path)) for line in told) for name, path in paths.items()}
    return kept | {key: str(block.get(key)) for key in ("protocol", "mode")} | means


def weakest_level(levels: Iterable[SecurityLevel | None]) -> SecurityLevel | None:
    """What holds for all of them; None where one does not say."""
    known = list(levels)
    return None if None in known or not known else min((one for one in known if one), key=lambda one: one.level)


def levels_side_by_side(a: SecurityLevel | None, b: SecurityLevel | None) -> str:
    """What both sides say, once where it is the same; nothing where neither says anything.

    >>> levels_side_by_side(SecurityLevel(1, "updates are seen"), SecurityLevel(2, "secagg"))
    'A level 1 (updates are seen); B level 2 (secagg)'
    """
    if a is None and b is None:
        return ""
    said = ["not stated" if one is None else one.said for one in (a, b)]
    return said[0] if said[0] == said[1] else f"A {said[0]}; B {said[1]}"
