"""What the runs of a card say of one method: values by seed, ready to be scored; and why others are not known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from atoll.card.scores import chance_level
from atoll.records import Claim, Floats, Record, SecurityLevel, weakest_claims, weakest_level
from atoll.report import MetricInfo

BySeed = dict[int, float]
COSTS = {"rounds": "rounds", "bytes": "bytes, up and down", "seconds": "virtual seconds"}
ATTACK = "attack-"  # how the names of such conditions begin


@dataclass(frozen=True)
class Measured:
    """One method: its records by condition and seed, those of the yardsticks among them."""

    method: str
    metric: MetricInfo
    records: Mapping[str, Mapping[int, Record]]
    target: float  # of the metric on the test data; NaN where there is none
    missing: Mapping[str, str] = field(default_factory=dict)  # condition -> why
    membership: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # by seed, as audit.json has it
    leakage: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)  # of conditions
    diverged: Mapping[str, frozenset[int]] = field(default_factory=dict)  # condition -> seeds of which nothing is left
    clean: Mapping[str, Mapping[int, float]] = field(default_factory=dict)  # attack -> what it would get without it

    @property
    def higher(self) -> bool:
        return self.metric.higher_is_better

    @property
    def own(self) -> Mapping[int, Record]:
        return self.records.get("own", {})

    @property
    def attacks(self) -> list[str]:
        """The attacks that were run, in the card's order."""
        known = [*self.titles, *self.records, *self.diverged]
        return [name for name in dict.fromkeys(known) if name.startswith(ATTACK) and self.quality(name)]

    def success(self, condition: str) -> BySeed:
        """What share of its probe an attack gets; nothing of one that wants no class."""
        outcomes = {seed: record.attack for seed, record in self.records.get(condition, {}).items()}
        return {seed: one.success for seed, one in outcomes.items() if one and math.isfinite(one.success)}

    def planted(self, condition: str) -> BySeed:
        """An attack's success above that on the model without it."""
        clean = self.clean.get(condition, {})
        return {seed: max(0.0, s - clean.get(seed, 0.0)) for seed, s in self.success(condition).items()}

    def quality(self, condition: str) -> BySeed:
        """The metric at the end: on the test data, or the clients' mean where there is none; NaN: it diverged."""
        records = self.records.get(condition, {})
        return self._whole(condition, {seed: last_value(r, self.metric.key) for seed, r in records.items()}, math.nan)

    def on_clients(self, condition: str) -> BySeed:
        """FedEval's effectiveness: the mean over clients of the metric on their own unseen examples, by examples."""
        values = {s: weighted_mean(r, self.metric.key) for s, r in self.records.get(condition, {}).items()}
        known = {seed: value for seed, value in values.items() if value is not None}
        return self._whole(condition, known, math.nan) if known else {}

    def seeds(self, condition: str) -> frozenset[int]:
        """At which it is known what becomes of the method there."""
        return frozenset(self.records.get(condition, ())) | self.diverged.get(condition, frozenset())

    def only(self, conditions: Mapping[str, frozenset[int]]) -> Measured:
        """Nothing but these conditions at these seeds."""
        nobody = frozenset[int]()
        records = {n: {s: r for s, r in b.items() if s in conditions.get(n, nobody)} for n, b in self.records.items()}
        diverged = {name: seeds & conditions.get(name, nobody) for name, seeds in self.diverged.items()}
        return replace(self, records={n: b for n, b in records.items() if b}, diverged=diverged)

    def _whole(self, condition: str, values: BySeed, lost: float) -> BySeed:
        """Values by seed, and `lost` where the run diverged."""
        return dict(sorted({**values, **dict.fromkeys(self.diverged.get(condition, ()), lost)}.items()))

    def chance(self) -> BySeed:
        """What guessing would reach, whichever of its runs tells the labels."""
        found: BySeed = {}
        for by_seed in (self.own, *self.records.values()):
            for seed, record in by_seed.items():
                found.setdefault(seed, chance_level(self.metric.key, record.run.get("label_counts")))
        return found

    def costs(self, condition: str, cost: str) -> BySeed:
        """What was spent until the target; inf where it was never reached, nothing where it was not counted."""
        spent = {
            seed: cost_to_reach(record, self.metric, self.target, cost)
            for seed, record in self.records.get(condition, {}).items()
        }
        known = {seed: value for seed, value in spent.items() if value is not None}
        return self._whole(condition, known, math.inf) if known else {}

    def spent(self, condition: str, cost: str) -> BySeed:
        """All that was spent."""
        records = self.records.get(condition, {})
        return {seed: float(totals[-1]) for seed, r in records.items() if (totals := _totals(r, cost)).size}

    def spread(self, name: str) -> BySeed:
        """A number of the clients' spread at the end: mean, worst_decile, gini."""
        values = {seed: r.series("clients", self.metric.key, name).values for seed, r in self.own.items()}
        return {seed: float(v[-1]) for seed, v in values.items() if v.size}

    def gains(self) -> dict[int, dict[int | str, float]]:
        """Every client's gain over training alone, by seed; positive is better."""
        alone, sign = self.records.get("local", {}), 1.0 if self.higher else -1.0
        found = {}
        for seed, record in self.own.items():
            if seed in alone and record.clients and alone[seed].clients and record.split == alone[seed].split:
                mine = record.clients.measured(self.metric.key, "before")
                theirs = alone[seed].clients.measured(self.metric.key, "before")  # type: ignore[union-attr]
                found[seed] = {i: sign * (v - theirs[i]) for i, v in mine.items() if i in theirs}
        return {seed: gains for seed, gains in found.items() if gains}

    @property
    def level(self) -> SecurityLevel | None:
        return weakest_level(record.security for record in self.own.values())

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What holds for every seed."""
        return weakest_claims({seed: record.claims for seed, record in self.own.items()})

    @property
    def guarantee(self) -> Claim | None:
        """The one that holds for a client, else the one for what it says (an example, a document)."""
        held = [claim for claim in self.claims if claim.holds and claim.epsilon is not None]
        return min(held, key=lambda claim: (claim.unit != "client", claim.epsilon or 0.0), default=None)


def shared(measured: Sequence[Measured]) -> tuple[Measured, ...]:
    """What every method has: a condition, or a seed of one, that one method lacks is taken from all."""
    names = dict.fromkeys(name for m in measured for name in (*m.records, *m.diverged))
    common = {name: frozenset.intersection(*(m.seeds(name) for m in measured)) for name in names}
    return tuple(m.only(common) for m in measured)


def unshared(measured: Sequence[Measured]) -> list[str]:
    """What some methods have and others do not, in words, and why."""
    words = []
    titles = {name: title for m in measured for name, title in m.titles.items()}
    for name, title in titles.items():
        have = {m.method: m.seeds(name) for m in measured}
        whole, common = frozenset.union(*have.values()), frozenset.intersection(*have.values())
        lacking = [m for m in measured if have[m.method] < whole]
        if whole != common:
            seeds = "" if not common else f" at seeds {', '.join(map(str, sorted(whole - common)))}"
            why = "; ".join(f"{m.method}: {m.missing.get(name, 'was not run there')}" for m in lacking)
            words.append(f"Not in the scores, since not every method has it: {title}{seeds} ({why}).")
    return words


def last_value(record: Record, key: str) -> float:
    """A run that diverged has NaN."""
    for path in ((key,), ("clients", key, "mean")):
        values = record.series(*path).values
        if values.size:
            return float(values[-1])
    return math.nan


def weighted_mean(record: Record, key: str) -> float | None:
    """sum_k n_k value_k / sum_k n_k over the clients that were measured."""
    if record.clients is None or key not in record.clients.before:
        return None
    values = record.clients.before[key]
    sizes = np.asarray(record.clients.examples or np.ones(len(values)), np.float64)
    known = np.isfinite(values) & (sizes > 0)
    return float(np.average(values[known], weights=sizes[known])) if known.any() else None


def cost_to_reach(record: Record, metric: MetricInfo, target: float, cost: str) -> float | None:
    """What had been spent when the target was first reached; inf if never; None where it was not counted."""
    totals = _totals(record, cost)
    if not totals.size or not math.isfinite(target):
        return None
    series = record.series(metric.key)
    there = series.values >= target if metric.higher_is_better else series.values <= target
    return float(totals[int(series.rounds[int(np.argmax(there))]) - 1]) if there.any() else math.inf


def _totals(record: Record, cost: str) -> Floats:
    if cost == "rounds":
        return np.arange(1.0, len(record.rounds) + 1)
    if cost == "seconds":
        return record.series("clock.end").values
    return np.cumsum(record.series("bytes.up").values + record.series("bytes.down").values)
