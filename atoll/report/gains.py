"""Gain over training alone: does a client do better in the federation than with its own data only?"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atoll.records import Record
from atoll.report.estimates import interval
from atoll.report.metrics import MetricInfo
from atoll.report.seed_groups import Group
from atoll.stats import Estimate

HOW = 'Gain over training alone is not shown: add a run with algorithm.name = "local" on the same partition and seed.'


@dataclass(frozen=True)
class Gain:
    """The mean gain per client (positive is better, whatever the metric), and the share of clients that gain."""

    mean: Estimate
    share: Estimate


def gain(group: Group, groups: Sequence[Group], metric: MetricInfo, when: str = "before") -> Gain | None:
    """Over seeds: each client's value minus the same client's value when trained alone on the same split and seed.

    None unless every seed of the group has such a run among `groups`. Where several local-only runs fit, the
    strongest is the yardstick.
    """
    if group.alone:
        return None
    alone = [record for other in groups if other.alone for record in other.records]
    by_seed = [client_gains(record, alone, metric, when) for record in group.records]
    if any(gains is None for gains in by_seed):
        return None
    complete = [list(gains.values()) for gains in by_seed if gains is not None]
    mean = interval([float(np.mean(gains)) for gains in complete])
    share = interval([float(np.mean(np.array(gains) > 0)) for gains in complete])
    return Gain(mean, share) if mean and share else None


def client_gains(
    record: Record, alone: Sequence[Record], metric: MetricInfo, when: str
) -> dict[int | str, float] | None:
    """The gain of each client that both runs measured."""
    own = record.clients.measured(metric.key, when) if record.clients else {}
    fitting = [_alone_values(record, other, metric) for other in alone]
    yardsticks = [values for values in fitting if values.keys() & own.keys()]
    if not yardsticks:
        return None
    sign = 1.0 if metric.higher_is_better else -1.0
    yardstick = max(yardsticks, key=lambda values: sign * float(np.mean(list(values.values()))))
    return {i: sign * (value - yardstick[i]) for i, value in own.items() if i in yardstick}


def _alone_values(record: Record, alone: Record, metric: MetricInfo) -> dict[int | str, float]:
    """What each client reached alone, if that run had the same split and seed and was measured on the same data."""
    if record.clients is None or alone.clients is None or record.clients.on != alone.clients.on:
        return {}
    if not record.split or (record.split, record.seed) != (alone.split, alone.seed):
        return {}
    return alone.clients.measured(metric.key, "before")
