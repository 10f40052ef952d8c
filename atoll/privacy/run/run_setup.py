"""What of a run's set-up its privacy depends on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from atoll.core import Algorithm, Chain, Model, Participation, Spec
from atoll.data import Dataset, Population
from atoll.privacy.run.dpsgd import ExamplePrivacy, LocalOptions
from atoll.privacy.run.tables import PrivacyTable
from atoll.schedules import Schedule
from atoll.tree import Tree


class TaskOptions(Protocol):
    """[task], as far as it can reach past the noise."""

    @property
    def batch_norm(self) -> str: ...


class WatchedMetric(Protocol):
    """What a run may end by."""

    @property
    def metric(self) -> str: ...


class ExperimentOptions(Protocol):
    """The options of an experiment that decide what a run may claim."""

    @property
    def rounds(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def data(self) -> Mapping[str, Any]: ...
    @property
    def algorithm(self) -> Mapping[str, Any]: ...
    @property
    def task(self) -> TaskOptions: ...
    @property
    def local(self) -> LocalOptions: ...
    @property
    def stop(self) -> object | None: ...
    @property
    def privacy(self) -> PrivacyTable | None: ...


class RunSetup(Protocol):
    """A run, built but not begun."""

    @property
    def experiment(self) -> ExperimentOptions: ...
    @property
    def dataset(self) -> Dataset: ...
    @property
    def population(self) -> Population: ...
    @property
    def sampler(self) -> Any: ...
    @property
    def model(self) -> Model: ...
    @property
    def algorithm(self) -> Algorithm: ...
    @property
    def chain(self) -> Chain: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def participation(self) -> Participation: ...
    @property
    def example_privacy(self) -> ExamplePrivacy | None: ...
    @property
    def watched(self) -> WatchedMetric | None: ...
    def spec(self) -> Spec: ...
    def schedules(self) -> list[Schedule]: ...
    def update_like(self) -> Tree: ...
