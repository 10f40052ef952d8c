"""From [clock] to the round in virtual time, and to who is asked."""

from __future__ import annotations

import math
from typing import Any

from atoll.clock import Clock, ClockTable
from atoll.core import Round
from atoll.data import SAMPLERS, Partition, Population
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


def in_virtual_time(round: Round, experiment: Experiment, population: Population, training: Partition) -> Round:
    """The round with the clock around it, if the file has one."""
    table = experiment.clock
    if table is None:
        return round
    if experiment.task.batch_norm == "recompute":
        raise ConfigError(
            "task.batch_norm: 'recompute' asks clients a second time in a round, which [clock] does not time. "
            "Use 'average', 'local' or 'group'."
        )
    if experiment.broadcast:
        raise ConfigError(
            "broadcast: who is sent a difference and who the whole, [clock] does not time yet. Leave one of them out."
        )
    most = reports_wanted(experiment, population.size) or population.size
    if table.min_reports > most:
        raise ConfigError(
            f"clock.min_reports: {table.min_reports} are more than the {most} that a round could have. Use fewer."
        )
    return Clocked.around(round, make_clock(experiment, table, population.size, training), population.steps)


def make_clock(experiment: Experiment, table: ClockTable, population: int, training: Partition) -> Clock:
    """`population` is 1 where all data is pooled."""
    names = training.client_names if population == training.size else ()
    return Clock.of(table, experiment.seed, population, names, reports_wanted(experiment, population))
