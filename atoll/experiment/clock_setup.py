"""From [clock] to the round in virtual time, and to who is asked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from atoll import rng
from atoll.clock import Clock, ClockTable, by_labels, by_size
from atoll.core import Round
from atoll.data import SAMPLERS, Partition, Population
from atoll.data.measures import label_counts
from atoll.errors import ConfigError
from atoll.experiment.experiment import Experiment
from atoll.experiment.registry import build
from atoll.rounds import Clocked
from atoll.schema import Entry


def make_sampler(experiment: Experiment, population: int) -> Any:
    """Who draws cohorts: with over-selection, larger ones."""
    sampler = build(SAMPLERS, experiment.cohort, where="cohort")
    sampler.check(population)
    wanted = reports_wanted(experiment, population)
    if wanted is None or experiment.clock is None:
        return sampler
    asked = math.ceil(wanted * experiment.clock.over_selection)
    if asked > population:
        raise ConfigError(
            f"clock.over_selection: {experiment.clock.over_selection:g} asks {asked} clients for {wanted} reports, and "
            f"there are {population}. Use a smaller cohort, or at most {population / wanted:.3g}."
        )
    return build(SAMPLERS, {"name": "fixed", "size": asked}, where="cohort")


def reports_wanted(experiment: Experiment, population: int) -> int | None:
    """How many reports the server waits for, where that is fewer than are asked."""
    if experiment.clock is None or experiment.clock.over_selection == 1:
        return None
    cohort: Entry = experiment.cohort
    if cohort["name"] == "fixed":
        return int(cohort["size"])
    if cohort["name"] == "fraction":
        return max(1, round(float(cohort["share"]) * population))
    raise ConfigError(
        f"clock.over_selection: takes the first of a fixed number of clients, and cohort.name = {cohort['name']!r} "
        "asks for no such number. Use cohort.name = 'fixed' with the size that you wait for."
    )


def in_virtual_time(
    round: Round, experiment: Experiment, population: Population, training: Partition, labels: Tensor | None
) -> Round:
    """The round with the clock around it, if the file has one."""
    table = experiment.clock
    if table is None:
        round.check_untimed()
        return round
    if experiment.task.batch_norm == "recompute":
        raise ConfigError(
            "task.batch_norm: 'recompute' asks clients a second time in a round, which [clock] does not time. "
            "Use 'average', 'local' or 'group'."
        )
    _refuse_unused(table)
    if table.min_reports > 1 and table.min_reports > (most := _most_reports(experiment, population.size)):
        raise ConfigError(
            f"clock.min_reports: {table.min_reports} are more than the {most} that a round could have. Use fewer."
        )
    clock = make_clock(experiment, table, population.size, training, labels)
    return round.in_virtual_time(clock, population.steps) or Clocked.around(round, clock, population.steps)


def _most_reports(experiment: Experiment, population: int) -> int:
    """Of any round: those that are waited for, or all who are drawn, or as many as there are clients."""
    wanted = reports_wanted(experiment, population)
    if wanted is not None:
        return wanted
    sampler = build(SAMPLERS, experiment.cohort, where="cohort")
    size: int | None = sampler.sample(population, 0, rng.key(experiment.seed, "cohort"))[1].size
    return population if size is None else size


def _refuse_unused(table: ClockTable) -> None:
    """Settings that would say nothing (ConfigError)."""
    if table.repeat and not isinstance(table.availability, str):
        raise ConfigError(
            'clock.repeat: begins a file of intervals again, and there is none. Add clock.availability = "reach.csv", '
            "or leave repeat out."
        )
    if table.grace and table.deadline is None:
        raise ConfigError(
            "clock.grace: is time beyond a deadline, and there is none. Add clock.deadline, or leave grace out."
        )
    if table.devices == {}:
        raise ConfigError(
            "clock.devices: names no class. Give shares such as { phones = 0.9, silo = 0.1 }, or leave it out."
        )


def make_clock(
    experiment: Experiment, table: ClockTable, population: int, training: Partition, labels: Tensor | None = None
) -> Clock:
    """`population` is 1 where all data is pooled."""
    apart = population == training.size
    names = training.client_names if apart else ()
    more = _propensity(table, training, labels)
    wanted = reports_wanted(experiment, population)
    return Clock.of(table, experiment.seed, population, names, wanted, more if apart else None)


def _propensity(table: ClockTable, training: Partition, labels: Tensor | None) -> NDArray[np.float64] | None:
    """How much more than the mean client each is lost, by what it holds; None: all alike."""
    if table.dropout_by_size is not None and table.dropout_by_labels is not None:
        raise ConfigError("clock.dropout_by_size: and dropout_by_labels are both given. Keep one of them.")
    if table.dropout_by_size is not None:
        return by_size(training.sizes.numpy(), table.dropout_by_size)
    if table.dropout_by_labels is None:
        return None
    if labels is None:
        raise ConfigError("clock.dropout_by_labels: this data has no classes. Use dropout_by_size = 1.0.")
    counts = label_counts(training, labels).numpy()
    unknown = [label for label in table.dropout_by_labels if not 0 <= label < counts.shape[1]]
    if unknown:
        raise ConfigError(
            f"clock.dropout_by_labels: there is no class {unknown[0]}. Use numbers from 0 to {counts.shape[1] - 1}."
        )
    return by_labels(counts, table.dropout_by_labels)
