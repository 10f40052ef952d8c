"""Results as evidence: every row of every suite is a setting, where one method did best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.errors import RecordError
from atoll.records import Cell, Results, When, cell_claims, promised, read_results, results_below, same_promises
from atoll.report import known_metric
from atoll.stats import Estimate, correlated_t, seeds_to_settle, t_interval

FEWEST = 2  # seeds, below which a mean has no spread
LIKELY = 0.75  # p(equal) from which two methods are practically equal
CHEAPER = 0.95  # of the bytes, and less, is cheaper
ROPE = 0.01  # of a share such as accuracy; of the best mean for what is no share
_ADVISABLE = "algorithm"  # the last axis of suites that answer; a "method" may need a round or a model of its own


@dataclass(frozen=True)
class MethodScore:
    """What a method reached in a setting: over its seeds."""

    method: str
    estimate: Estimate
    digests: tuple[str, ...]  # of the experiments, in the order of the seeds
    bytes: float  # up and down, of all clients of a run; NaN where nothing was counted


@dataclass(frozen=True)
class Cheaper:
    """A method that does practically as well as the best, and sends less: the one of these that sends least."""

    method: str
    share: float  # of the bytes of the best
    p_equal: float


@dataclass(frozen=True)
class Setting:
    """A row of a suite: its clients, and what the methods reached there, the best first."""

    suite: str
    size: str
    tuning: str
    block: str
    row: str
    data: str | None
    skew: Mapping[str, float]
    metric: str
    scale: float
    scores: tuple[MethodScore, ...]
    seeds: tuple[int, ...]  # those that the best and the second share
    margin: Estimate  # the best minus the second, paired
    rope: float
    p_better: float  # by more than the rope
    p_equal: float
    p_worse: float
    settled: int | None  # seeds in all that would settle it
    diverged: tuple[str, ...] = ()  # methods with a seed that was not finite
    privacy: str = ""  # what the best promises, where a run has a mechanism; nothing where none has
    cheaper: Cheaper | None = None

    @property
    def best(self) -> str:
        """The method with the best mean."""
        return self.scores[0].method

    @property
    def advised(self) -> str:
        """The best, or what does practically as well for less."""
        return self.best if self.cheaper is None else self.cheaper.method

    @property
    def name(self) -> str:
        """Suite and row."""
        return f"{self.suite} ({self.size}): {self.row}"


def default_evidence() -> list[Path]:
    """results/ here, and beside the package where it is a repository."""
    beside = Path(__file__).parents[3] / "results"
    places = {place.resolve(): place for place in (Path("results"), beside) if place.is_dir()}
    return list(places.values())


def read_evidence(paths: Sequence[Path]) -> tuple[list[Results], list[str]]:
    """Every results.json at or below these paths, and what could not be read."""
    results: dict[Path, Results] = {}
    notes = []
    for path in paths:
        for file in results_below(path):
            try:
                results[file.resolve()] = read_results(file)
            except RecordError as e:
                notes.append(str(e))
    return list(results.values()), notes


def settings(results: Sequence[Results], when: When = "last", rope: float | None = None) -> list[Setting]:
    """Every row with two methods or more on two seeds or more; the same row in two files counts once."""
    unique = {}
    for one in results:
        if one.axes[-1] != _ADVISABLE:
            continue
        for block in one.blocks():
            for cells in one.rows(block).values():
                setting = _setting(one, list(cells.values()), when, rope)
                if setting is not None:
                    unique[setting.name, setting.block, tuple(score.digests for score in setting.scores)] = setting
    return [unique[key] for key in sorted(unique)]


def _setting(one: Results, cells: Sequence[Cell], when: When, rope: float | None) -> Setting | None:
    """None where there is nothing to choose from, or it was not measured how unlike the clients are."""
    fair = [cell for cell in cells if cell.quirk is None]
    values = {cell.method: cell.by_seed(when, one.higher) for cell in fair}
    finite = {m: v for m, v in values.items() if len(v) >= FEWEST and all(map(math.isfinite, v.values()))}
    skew = next((cell.skew for cell in cells if cell.skew), {})
    order = sorted(finite, key=lambda m: (statistics.fmean(finite[m].values()) * (-1 if one.higher else 1), m))
    if len(order) < 2 or not skew:
        return None
    by_method = {cell.method: cell for cell in fair}
    best, second = order[:2]
    seeds, a, b = _paired(by_method[best], by_method[second], finite)
    if len(seeds) < FEWEST:
        return None
    width = rope if rope is not None else _rope(one, a)
    belief = correlated_t(a, b, rope=width, rho=0.0, higher=one.higher)
    scores = tuple(_score(by_method[m], finite[m]) for m in order)
    equal = {m: _p_equal(by_method[best], by_method[m], finite, width) for m in order[1:]}
    return Setting(
        one.suite,
        one.size,
        one.tuning,
        fair[0].block,
        "/".join(fair[0].row),
        fair[0].path.get("data") or _only(one.made.get("data")),
        skew,
        one.metric,
        one.scale,
        scores,
        seeds,
        t_interval([x - y for x, y in zip(a, b, strict=True)]),
        width,
        belief.p_a,
        belief.p_equal,
        belief.p_b,
        seeds_to_settle(a, b, rope=width, rho=0.0),
        tuple(m for m, v in values.items() if v and not all(map(math.isfinite, v.values()))),
        _privacy([by_method[m] for m in order]),
        _cheaper(scores, equal),
    )


def _cheaper(scores: Sequence[MethodScore], p_equal: Mapping[str, float]) -> Cheaper | None:
    most, *others = scores
    less = [score for score in others if p_equal[score.method] >= LIKELY and score.bytes <= CHEAPER * most.bytes]
    if not less:
        return None
    least = min(less, key=lambda score: score.bytes)  # of several the best, which comes first
    return Cheaper(least.method, least.bytes / most.bytes, p_equal[least.method])


def _p_equal(best: Cell, other: Cell, values: Mapping[str, Mapping[int, float]], rope: float) -> float:
    seeds, a, b = _paired(best, other, values)
    return correlated_t(a, b, rope=rope, rho=0.0).p_equal if len(seeds) >= FEWEST else 0.0


def _privacy(cells: Sequence[Cell]) -> str:
    """Of the best, which comes first; and whether the others promise the same."""
    held = [cell_claims(cell) for cell in cells]
    if not any(held):
        return ""
    same = all(same_promises(held[0], other) for other in held)
    return promised(held[0]) + ("" if same else ", others there not the same")


def _only(data: Any) -> str | None:
    """The one data set of a suite; None if it has several."""
    return data if isinstance(data, str) else None


def _paired(
    a: Cell, b: Cell, values: Mapping[str, Mapping[int, float]]
) -> tuple[tuple[int, ...], list[float], list[float]]:
    """The seeds at which both had the same clients, and what they reached there."""
    ours, theirs = ({run.seed: run.partition for run in cell.runs} for cell in (a, b))
    seeds = tuple(sorted(seed for seed in ours if seed in theirs and ours[seed] == theirs[seed]))
    return seeds, [values[a.method][seed] for seed in seeds], [values[b.method][seed] for seed in seeds]


def _score(cell: Cell, values: Mapping[int, float]) -> MethodScore:
    seeds = sorted(values)
    digests = {run.seed: run.digest for run in cell.runs}
    sent = [run.bytes[-1] for run in cell.runs if run.bytes]
    cost = statistics.fmean(sent) if sent else math.nan
    return MethodScore(cell.method, t_interval([values[s] for s in seeds]), tuple(digests[s] for s in seeds), cost)


def _rope(one: Results, values: Sequence[float]) -> float:
    return ROPE if known_metric(one.metric).share else ROPE * abs(statistics.fmean(values))
