"""The card as a value: every axis of every method with its interval, what it is made of, and what was left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atoll.card.card_measures import BySeed, Measured, shared, unshared
from atoll.card.profiles import ScorePart, ScoreProfile
from atoll.card.scores import AXES, by_seed_mean
from atoll.report import MetricInfo
from atoll.stats import Estimate, t_interval

Parts = Mapping[str, Mapping[str, tuple[ScorePart, ...]]]  # method -> axis -> parts


@dataclass(frozen=True)
class AxisScore:
    """One axis of one method: the mean of those parts that every method of the card has."""

    axis: str
    parts: tuple[ScorePart, ...]
    counted: tuple[str, ...]
    by_seed: BySeed
    estimate: Estimate | None  # within the scale; None: nothing of it was measured

    @property
    def why(self) -> str:
        """What is missing, part by part."""
        return "; ".join(
            f"{p.title}: not measured ({p.why or 'no record of it'})" for p in self.parts if not p.measured
        )


@dataclass(frozen=True)
class ScoreCard:
    """Methods side by side."""

    title: str
    profile: ScoreProfile
    metric: MetricInfo
    measured: tuple[Measured, ...]
    scores: Mapping[str, Mapping[str, AxisScore]]  # method -> axis -> score
    seeds: tuple[int, ...]
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    command: str = ""
    alike: tuple[Measured, ...] = ()  # the same methods, with what all of them have: what is scored

    @property
    def methods(self) -> list[str]:
        return [one.method for one in self.measured]

    @property
    def axes(self) -> list[str]:
        """Those that some method has."""
        return [axis for axis in AXES if any(self.scores[m][axis].estimate for m in self.methods)]


def score(
    title: str, profile: ScoreProfile, measured: Sequence[Measured], seeds: Sequence[int], **more: Any
) -> ScoreCard:
    """Score what was measured, every method on what all of them have."""
    alike = shared(measured)
    whole = {m.method: {axis: tuple(profile.rules[axis](m)) for axis in profile.rules} for m in alike}
    by_method = _same_seeds(whole)
    counted = {axis: _everywhere([parts[axis] for parts in by_method.values()]) for axis in profile.rules}
    scores = {
        name: {axis: _axis(axis, parts.get(axis, ()), counted.get(axis, ()), profile) for axis in AXES}
        for name, parts in by_method.items()
    }
    left_out = tuple(dict.fromkeys((*more.pop("left_out", ()), *unshared(measured), *_of_different_units(by_method))))
    return ScoreCard(
        title,
        profile,
        measured[0].metric,
        tuple(measured),
        scores,
        tuple(seeds),
        left_out=left_out,
        alike=alike,
        **more,
    )


def _same_seeds(by_method: Parts) -> Parts:
    """Every part at those seeds that all methods have it at, where all have it at some."""
    found: dict[str, dict[str, tuple[ScorePart, ...]]] = {name: {} for name in by_method}
    for name, axes in by_method.items():
        for axis, parts in axes.items():
            found[name][axis] = tuple(_cut(part, [other[axis] for other in by_method.values()]) for part in parts)
    return found


def _cut(part: ScorePart, of_all: Sequence[Sequence[ScorePart]]) -> ScorePart:
    others = [p.by_seed for parts in of_all for p in parts if p.name == part.name and p.measured]
    common = {seed: value for seed, value in part.by_seed.items() if all(seed in other for other in others)}
    return replace(part, by_seed=common) if common else part


def rescored(card: ScoreCard, profile: ScoreProfile) -> ScoreCard:
    """The same measurements by other rules."""
    more = {"notes": card.notes, "left_out": card.left_out, "command": card.command}
    return score(card.title, profile, card.measured, card.seeds, **more)


def _everywhere(by_method: Sequence[Sequence[ScorePart]]) -> tuple[str, ...]:
    """The parts that every method has."""
    return tuple(
        p.name
        for p in by_method[0]
        if all(_has(parts, p.name) for parts in by_method) and len(_units(by_method, p.name)) < 2
    )


def _units(by_method: Sequence[Sequence[ScorePart]], name: str) -> set[str]:
    """Of those that have one."""
    return {part.unit for parts in by_method for part in parts if part.name == name and part.unit}


def _of_different_units(by_method: Parts) -> list[str]:
    """What is not ranked, in words."""
    words = []
    for axis in next(iter(by_method.values())):
        for part in next(iter(by_method.values()))[axis]:
            if len(_units([parts[axis] for parts in by_method.values()], part.name)) > 1:
                units = {m: p.unit for m, parts in by_method.items() for p in parts[axis] if p.name == part.name}
                said = ", ".join(f"{m}: {unit}" for m, unit in units.items() if unit)
                words.append(f"Not in the scores: {part.name}s are of different units ({said}).")
    return words


def _has(parts: Sequence[ScorePart], name: str) -> bool:
    return any(part.name == name and part.measured for part in parts)


def _axis(axis: str, parts: Sequence[ScorePart], counted: Sequence[str], profile: ScoreProfile) -> AxisScore:
    by_seed = by_seed_mean([part.by_seed for part in parts if part.name in counted])
    return AxisScore(axis, tuple(parts), tuple(counted), by_seed, estimate(by_seed, profile.scale))


def estimate(by_seed: BySeed, scale: float) -> Estimate | None:
    """Mean and 95 % t interval over seeds, cut to where scores can be.

    >>> estimate({0: 0.98, 1: 1.0, 2: 1.0}, 1.0).high
    1.0
    """
    if not by_seed:
        return None
    found = t_interval(list(by_seed.values()))
    if found.low is None or found.high is None:
        return found
    return replace(found, low=max(0.0, found.low), high=min(scale, found.high))
