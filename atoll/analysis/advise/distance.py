"""How far two settings are apart: four kinds of skew, and whether the data is the same.

label    the root mean square of the gaps in emd / 2, jensen_shannon, and effective_classes as a share of all classes
size     the gap in size_gini
feature  the gap in the square root of the level of noise, which is its variance; noise that is not mentioned is none
number   the gap in log10(clients), halved: ten times as many clients are 0.5 apart

Every gap is at most 1. The distance is the length sqrt(label^2 + size^2 + feature^2 + number^2), and OTHER_DATA more
for another data set, and OTHER_PRIVACY more where one of the two has a mechanism for privacy and the other has none. A
number that one of the two lacks is left out for both; where neither labels nor sizes of both are known, there is no
distance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

OTHER_DATA = 0.1  # another data set is so much further
OTHER_PRIVACY = 0.1  # so is noise in one of two settings: what is best under noise need not be best without
WITHIN = 0.3  # what is further says nothing
KINDS = {
    "label": ("emd", "jensen_shannon", "effective_classes"),
    "size": ("size_gini",),
    "feature": ("noise",),
    "number": ("clients",),
}
_DIGITS = 6  # significant, of the numbers in a results.json


@dataclass(frozen=True)
class Distance:
    """How far, in which kinds of skew, and whether the data is another."""

    total: float
    kinds: Mapping[str, float]  # those that both know
    other_data: bool
    other_privacy: bool = False


def distance(
    a: Mapping[str, float], b: Mapping[str, float], same_data: bool, same_privacy: bool = True
) -> Distance | None:
    """How far two settings are apart; None if neither labels nor sizes of both are known.

    >>> distance({"emd": 1.0, "size_gini": 0.3}, {"emd": 1.0, "clients": 10}, same_data=True).total
    0.0
    >>> distance({"size_gini": 0.4}, {"size_gini": 0.0}, same_data=False).total
    0.5
    """
    x, y = axes(a), axes(b)
    kinds = {}
    for kind, names in KINDS.items():
        gaps = [min(1.0, abs(x[name] - y[name])) for name in names if name in x and name in y]
        if gaps:
            kinds[kind] = math.sqrt(math.fsum(gap * gap for gap in gaps) / len(gaps))
    if not {"label", "size"} & set(kinds):  # as many clients are not alike for that
        return None
    length = math.sqrt(math.fsum(gap * gap for gap in kinds.values()))
    more = (0.0 if same_data else OTHER_DATA) + (0.0 if same_privacy else OTHER_PRIVACY)
    return Distance(length + more, kinds, not same_data, not same_privacy)


def axes(skew: Mapping[str, float]) -> dict[str, float]:
    """The numbers of a skew, each so that a gap of 1 is as far as can be (or, of clients, a hundred times as many)."""
    known = {key: _cut(value) for key, value in skew.items() if value is not None and math.isfinite(value)}
    positions: dict[str, float] = {key: known[key] for key in ("jensen_shannon", "size_gini") if key in known}
    if "emd" in known:
        positions["emd"] = known["emd"] / 2
    classes = known.get("classes", 1.0)  # without it, a share already
    if 0 < known.get("effective_classes", 0) <= classes:
        positions["effective_classes"] = known["effective_classes"] / classes
    if known.get("clients", 0) > 0:
        positions["clients"] = math.log10(known["clients"]) / 2
    return {**positions, "noise": math.sqrt(max(0.0, known.get("noise", 0.0)))}


def _cut(value: float) -> float:
    """As it is written in results, so that the same setting is 0 away from itself."""
    return float(f"{value:.{_DIGITS}g}")
