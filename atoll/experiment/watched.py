"""Numbers of the record that may end a run or choose its best model, and which way they get better.

>>> watched = Watched("clients.loss.mean", "lower")
>>> watched.value({"round": 1, "clients": {"loss": {"mean": 0.5}}}), watched.improves(0.4, on=0.5)
(0.5, True)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from atoll.errors import ConfigError
from atoll.experiment.experiment import Experiment, StopTable
from atoll.records import find, has, number_or_nan
from atoll.schedules import Schedule
from atoll.schema import did_you_mean

Better: TypeAlias = Literal["higher", "lower"]
TRAIN_LOSS = "train_loss"  # of the clients' own examples; all other flat names are of the test data
_SPREAD = ("mean", "std", "min", "max", "median", "worst_decile", "gini")
_EVEN = ("std", "gini")  # the smaller, the more alike clients are


@dataclass(frozen=True)
class Watched:
    """A dotted key of the record's lines."""

    metric: str
    better: Better

    def value(self, line: Mapping[str, Any]) -> float:
        """What the line has there; NaN where it was not measured, or is no finite number."""
        value = number_or_nan(find(line, *self.metric.split(".")))
        return value if math.isfinite(value) else math.nan

    def measured_in(self, line: Mapping[str, Any]) -> bool:
        """Was it due in this line, whatever came of it?"""
        return has(line, self.metric.split("."))

    def improves(self, value: float, on: float, threshold: float = 0.0) -> bool:
        """Is a value better than another by more than this? What is no number is never better."""
        sign = 1.0 if self.better == "higher" else -1.0
        return sign * value > (-math.inf if math.isnan(on) else sign * on) + threshold


def recorded(
    central: Mapping[str, Better], by_client: Mapping[str, Better], experiment: Experiment, pooled: bool
) -> dict[str, Better]:
    """Every number that lines of the record will hold and that gets better or worse, flat names first."""
    table = experiment.evaluate
    parts = ["clients", "after"] if table.after and not pooled else ["clients"]
    names: dict[str, Better] = {**central, TRAIN_LOSS: "lower"}
    if experiment.server is not None:
        names |= {f"ema.{name}": better for name, better in central.items()}
    for part in parts if table.clients else ():
        for name, better in by_client.items():
            names |= {f"{part}.{name}.{what}": "lower" if what in _EVEN else better for what in _SPREAD}
    return names


def choose_watched(stop: StopTable | None, names: Mapping[str, Better], leading: str) -> Watched:
    """What a run ends by and its best model is chosen on: what `stop` names, else the `leading` metric.

    Without test data that is the mean over clients, and where none is measured the training loss.
    """
    usual = next((name for name in (leading, f"clients.{leading}.mean") if name in names), TRAIN_LOSS)
    metric = usual if stop is None or stop.metric is None else stop.metric
    return Watched(metric, names[metric])


def check_watched(
    names: Mapping[str, Better], stop: StopTable | None, schedules: Sequence[Schedule], leading: str
) -> None:
    """Refuse to wait for a number that never comes, or for the wrong direction of one."""
    flat = {name: better for name, better in names.items() if "." not in name}
    problems = []
    if stop is not None:
        watched = choose_watched(None, names, leading).metric if stop.metric is None else stop.metric
        problems += _mistakes("stop.metric", watched, names) or _upside_down("stop.better", watched, stop.better, names)
    for s in schedules:
        kind = type(s).__name__.lower()
        for name in s.metrics():
            taken = s.directions().get(name)
            problems += _mistakes(f"{kind}, metric", name, flat) or _upside_down(f"{kind}, better", name, taken, flat)
    if problems:
        raise ConfigError(problems)


def _mistakes(where: str, name: str, known: Mapping[str, Better]) -> list[str]:
    if name in known:
        return []
    why = " (there is no test data)" if next(iter(known)) == TRAIN_LOSS else ""
    return [f"{where}: {name!r} is not measured{why}.{did_you_mean(name, [*known])} Measured: {_listed(known)}."]


def _upside_down(where: str, name: str, stated: Better | None, known: Mapping[str, Better]) -> list[str]:
    if stated in (None, known[name]):
        return []
    return [f"{where}: {name!r} is better when it is {known[name]}. Write better = '{known[name]}'."]


def _listed(names: Iterable[str]) -> str:
    """The names, with the spread over clients said once."""
    few = [name for name in names if "." not in name or name.endswith(".mean")]
    more = f" (for mean also {', '.join(_SPREAD[1:])})" if any("." in name for name in few) else ""
    return ", ".join(few) + more
