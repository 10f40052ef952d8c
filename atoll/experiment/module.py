"""Networks for the data at hand: the model that is learned, and those that an algorithm owns beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from atoll import rng
from atoll.data import Dataset
from atoll.errors import ConfigError
from atoll.experiment.experiment import Experiment
from atoll.experiment.registry import build
from atoll.experiment.task import make_task
from atoll.schema import Entry
from atoll.tasks import MODELS, Loss, Supervised


def make_module(entry: Entry, dataset: Dataset, where: str, key: Tensor) -> nn.Module:
    """The network that the entry names, for the data's shapes, its weights drawn from the key and nothing else."""
    if dataset.vocabulary and (entry.get("vocabulary") or dataset.vocabulary) < dataset.vocabulary:
        raise ConfigError(
            f"{where}.vocabulary: {entry['vocabulary']:,} is too small for {dataset.name}, which has "
            f"{dataset.vocabulary:,} tokens. Use vocabulary = {dataset.vocabulary}."
        )
    with seeded_torch(key):
        found: nn.Module = build(MODELS, entry, where=where, inputs=dataset.inputs, outputs=dataset.outputs)
    return found


@contextmanager
def seeded_torch(key: Tensor) -> Iterator[None]:
    """Inside, torch's own generator draws from the key; outside, it is as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed((int(key[0]) << 31) ^ int(key[1]))
        yield


@dataclass(frozen=True)
class SecondModels:
    """Builds what an algorithm's `SecondModel` options name: each once, drawn from the seed and the option's name."""

    experiment: Experiment
    dataset: Dataset
    like: Supervised  # the task that is learned: what it computes in
    device: torch.device
    loss: Loss | None = None
    tasks: dict[str, Supervised] = field(default_factory=dict)  # by where the file has it

    def __call__(self, entry: Entry, where: str) -> Supervised:
        if where not in self.tasks:
            try:
                self.tasks[where] = self._task(entry, where)
            except ConfigError as e:  # from code that knows one model only
                raise ConfigError([p.replace("task.model", where, 1) for p in e.problems]) from e
        return self.tasks[where]

    def _task(self, entry: Entry, where: str) -> Supervised:
        key = rng.key(self.experiment.seed, "init", where.rpartition(".")[2])
        module = make_module(entry, self.dataset, where, key)
        task = make_task(self.experiment, self.dataset, module, self.loss)
        task.compute_dtype = self.like.compute_dtype
        return task.to(self.device)
