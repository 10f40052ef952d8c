"""How many training steps experiments would take, from data that is here; nothing is fetched for it."""

from __future__ import annotations

import json

import torch

from atoll import rng
from atoll.data import SAMPLERS, Dataset, Population
from atoll.data.fetch import cached_state
from atoll.data.sources import RECIPES
from atoll.errors import AtollError
from atoll.experiment import Experiment, build, load_dataset, make_partition


class Steps:
    """Counts the steps of experiments; data and clients that several share are made once."""

    def __init__(self) -> None:
        self._data: dict[str, Dataset | None] = {}
        self._known: dict[str, int | None] = {}

    def __call__(self, experiment: Experiment) -> int | None:
        """Of all clients in all rounds, as the first seed has it; None if that cannot be said here."""
        parts = [experiment.data, experiment.partition, experiment.cohort, experiment.local.model_dump()]
        name = json.dumps(parts, sort_keys=True)
        if name not in self._known:
            try:
                self._known[name] = self._round(experiment)
            except AtollError:
                self._known[name] = None
        steps = self._known[name]
        return None if steps is None else steps * experiment.rounds

    def _round(self, experiment: Experiment) -> int | None:
        dataset = self._loaded(experiment)
        if dataset is None:
            return None
        local = experiment.local
        partition = make_partition(experiment, dataset)
        population = Population(partition, local.batch, local.epochs, local.shuffle, local.max_steps)
        sampler = build(SAMPLERS, experiment.cohort, where="cohort")
        ids, _ = sampler.sample(population.size, 0, rng.key(experiment.seed, "cohort"))
        mean = float(population.steps(torch.arange(population.size)).double().mean())
        return round(len(ids) * mean)

    def _loaded(self, experiment: Experiment) -> Dataset | None:
        name = json.dumps(experiment.data, sort_keys=True)
        if name not in self._data:
            recipe = RECIPES.get(experiment.data["name"])
            here = recipe is None or cached_state(recipe) is not None
            self._data[name] = load_dataset(experiment) if here else None
        return self._data[name]
