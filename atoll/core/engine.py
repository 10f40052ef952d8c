"""Where the work of rounds is done."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Protocol

from torch import Tensor

from atoll.core.requests import Pending, Request
from atoll.tree import Tree


class ClientStates(Protocol):
    """What clients keep, as a checkpoint holds it: whose it is, and their rows, a bounded piece at a time."""

    def ids(self) -> Tensor:
        """The clients whose state was ever written, in order."""
        ...

    def pieces(self) -> Iterator[tuple[Tensor, Tree]]:
        """Ids, in order, and their rows on the host."""
        ...


class Engine(ABC):
    """Answers requests. It owns batch plans, client state and evaluation; it never calls up."""

    name: ClassVar[str]
    notes: list[str]  # why it is this one, and what it found out on the way

    @abstractmethod
    def submit(self, request: Request) -> Pending[Any]:
        """Begin the work, and come back as soon as the host may go on."""

    def run(self, request: Request) -> Any:
        """Do the work and wait for it."""
        return self.submit(request).result()

    def prepare(self, ids: Tensor, key: Tensor, order: Tensor) -> None:
        """A `Train` with these will come: the host has time now for what that needs."""

    def expect(self, rounds: int) -> None:
        """So many rounds are still to come: it may pay to compile."""

    def signature(self, request: Request) -> Hashable:
        """Equal for requests that `submit_together` can do as one stack; None: alone."""
        return None

    def leading(self, others: Sequence[Engine]) -> Engine:
        """An engine of this kind that does the work of several runs, each of which has one of its own."""
        return self

    def submit_together(self, lanes: Sequence[tuple[Engine, Request]]) -> list[Any]:
        """Answers to requests of one signature, each of a run with an engine of its own."""
        return [engine.run(request) for engine, request in lanes]

    @abstractmethod
    def state(self) -> ClientStates:
        """What clients keep between rounds."""

    @abstractmethod
    def load(self, pieces: Iterable[tuple[Tensor, Tree]]) -> None:
        """Go back to what a checkpoint held."""

    @abstractmethod
    def choice(self) -> dict[str, Any]:
        """The options with which it can be made again."""

    def lap(self) -> dict[str, Any]:
        """What the record says of the seconds since the last lap, beside their sum."""
        return {}
