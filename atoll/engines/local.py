"""What the engines of one process share: they hold the data and the clients' state, and answer requests."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from atoll.core import ClientStates, Engine, Evaluate, Evaluated, Pending, Request, Train, Trained
from atoll.engines.client_state import ClientStore, RowStore
from atoll.engines.device_data import DeviceData
from atoll.engines.evaluation import evaluate
from atoll.errors import TrainingError
from atoll.phases import phase
from atoll.tree import Tree


@dataclass
class LocalEngine(Engine):
    """Trains and measures here."""

    data: DeviceData
    store: ClientStore
    notes: list[str] = field(default_factory=lambda: ["chosen by name"], kw_only=True)

    def submit(self, request: Request) -> Pending[Any]:
        if isinstance(request, Train):
            with phase("engine"):
                return self.train(request)
        if isinstance(request, Evaluate):
            return Pending.done(self.evaluate(request))
        raise TrainingError("engine: messages between parties need a network. Use a round that trains clients.")

    @abstractmethod
    def train(self, request: Train) -> Pending[Trained]:
        """Every client's program, and the reducer."""

    def evaluate(self, request: Evaluate) -> Evaluated:
        return evaluate(self.data.evaluation, request, self._models, stacked=self.stacks)

    @property
    def stacks(self) -> bool:
        """Can clients' models be measured as one stack?"""
        return True

    def _models(self, snapshot: Train) -> tuple[Tree, Trained]:
        """What each client of the snapshot predicts with, stacked in the order in which they were reduced."""
        trained: Trained = self.train(snapshot).result()
        return trained.partial.updates.value, trained

    def state(self) -> ClientStates:
        assert isinstance(self.store, RowStore), "the state of many ranks is theirs together"
        return self.store

    def load(self, pieces: Iterable[tuple[Tensor, Tree]]) -> None:
        assert isinstance(self.store, RowStore), "the state of many ranks is theirs together"
        self.store.load(pieces)
