"""The rows that both sides have, seed by seed. A pair has one seed and one partition; the rest is left out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll.analysis.compare.load_side import SeedRun, SettingRuns
from atoll.records import attacks_side_by_side, levels_side_by_side, promises_side_by_side, reached_end
from atoll.report import differing, is_fingerprint, short, show

Key = tuple[str, ...]


@dataclass(frozen=True)
class Match:
    """One row: the values of both sides at the seeds that make pairs."""

    name: str
    place: Mapping[str, Any]  # what tells it from the other rows
    seeds: tuple[int, ...]
    a: tuple[float, ...]
    b: tuple[float, ...]
    privacy: str = ""  # what both sides promise, where one has an epsilon
    security: str = ""  # what was seen of the clients of both
    attack: str = ""  # who attacked them


@dataclass(frozen=True)
class Matched:
    """All rows with pairs, and everything that was left out."""

    rows: tuple[Match, ...]
    left_out: tuple[str, ...]
    differing: Mapping[str, tuple[Any, Any]]  # what tells one side from the other: the same within each


def match(a: Sequence[SettingRuns], b: Sequence[SettingRuns]) -> Matched:
    """Rows are told apart by what varies within a side; what varies only between the sides is what is compared.

    >>> run = SeedRun(seed=0, value=0.5, partition="p")
    >>> a = [SettingRuns({"alpha": alpha, "algorithm": "fedavg"}, (run,)) for alpha in (1, 2)]
    >>> found = match(a, [SettingRuns({"alpha": 1, "algorithm": "fedprox"}, (run,))])
    >>> [row.name for row in found.rows], found.differing, found.left_out
    (['alpha=1'], {'algorithm': ('fedavg', 'fedprox')}, ('alpha=2: only in A',))
    """
    keys = _varying(a, b)
    ours, theirs = ({_key(s, keys): s for s in side} for side in (a, b))
    names = {key: _name(s.place, keys) for key, s in (theirs | ours).items()}
    left_out = [f"{names[key]}: only in A" for key in ours if key not in theirs]
    left_out += [f"{names[key]}: only in B" for key in theirs if key not in ours]
    rows = []
    for key in ours:
        if key in theirs:
            row, why = _paired(names[key], ours[key], theirs[key], keys)
            left_out += why
            rows += [row] if row.seeds else []
    between = [k for k in differing([a[0].place, b[0].place]) if k not in keys] if a and b else []
    return Matched(tuple(rows), tuple(left_out), {k: (a[0].place.get(k), b[0].place.get(k)) for k in between})


def _varying(a: Sequence[SettingRuns], b: Sequence[SettingRuns]) -> list[str]:
    varying = [key for side in (a, b) for key in differing([series.place for series in side])]
    order = dict.fromkeys(key for series in (*a, *b) for key in series.place)
    return [key for key in order if key in varying]


def _key(series: SettingRuns, keys: Sequence[str]) -> Key:
    return tuple(json.dumps(series.place.get(key), sort_keys=True, default=str) for key in keys)


def _name(place: Mapping[str, Any], keys: Sequence[str]) -> str:
    """A suite's place is a word for each axis; of settings each needs its name too."""
    words = short(list(keys))
    own = [key for key in keys if key in place and not is_fingerprint(key)]
    plain = all(isinstance(place[key], str) for key in own)
    named = (show(place[key]) if plain or key.endswith(".name") else f"{words[key]}={show(place[key])}" for key in own)
    return ("/" if plain else ", ").join(named) or "all"


def _paired(name: str, a: SettingRuns, b: SettingRuns, keys: Sequence[str]) -> tuple[Match, list[str]]:
    ours, theirs = ({run.seed: run for run in series.runs} for series in (a, b))
    alike = _asked(a, "data") == _asked(b, "data")  # the same data by name: then they must be the same
    same = [name for name in ("round", "cohort", "clock") if _asked(a, name) == _asked(b, name)]
    whys = {seed: _why_not(ours.get(seed), theirs.get(seed), alike, same) for seed in sorted({*ours, *theirs})}
    seeds = tuple(seed for seed, why in whys.items() if not why)
    x, y = (tuple(side[seed].value for seed in seeds) for side in (ours, theirs))
    place = {key: a.place[key] for key in keys if key in a.place}
    reasons: dict[str, list[str]] = {}
    for seed, why in whys.items():
        if why:
            reasons.setdefault(why, []).append(str(seed))
    left = [f"{name}: seed{'s' if len(s) > 1 else ''} {', '.join(s)}: {why}" for why, s in reasons.items()]
    said = promises_side_by_side(a.held, b.held), levels_side_by_side(a.security, b.security)
    return Match(name, place, seeds, x, y, *said, attacks_side_by_side(a.attack, b.attack)), left


def _asked(series: SettingRuns, table: str) -> dict[str, Any]:
    """What it sets of one table of the file."""
    return {key: value for key, value in series.place.items() if key.partition(".")[0] == table}


def _why_not(a: SeedRun | None, b: SeedRun | None, same_data: bool, same: Sequence[str]) -> str:
    """Why two runs are no pair; nothing if they are one. `same`: tables of the file in which both ask for the same."""
    if a is None or b is None:
        return f"only in {'B' if a is None else 'A'}"
    for side, run in (("A", a), ("B", b)):
        if not reached_end(run.status):
            return f"{side} did not run to its end ({run.status})"
    if same_data and a.data and b.data and a.data != b.data:
        return f"the data differ (digest {a.data[:8]}... in A, {b.data[:8]}... in B)"
    if a.partition != b.partition:
        return "the clients hold other examples in A than in B"
    for name, was in a.inputs.items():
        now = b.inputs.get(name, was)
        if was != now and name.partition(".")[0] in same:
            return f"what {name} names differs (digest {was[:8]}... in A, {now[:8]}... in B)"
    if not math.isfinite(a.value) or not math.isfinite(b.value):
        return f"not finite in {'A' if not math.isfinite(a.value) else 'B'}"
    return ""
