"""How a round meets a protocol that sums: who stays, what it takes, and what the reducer must know of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from atoll.clock import Overhead
from atoll.core.reducer import Reducer
from atoll.core.transform import Chain
from atoll.tree import Tree


class Attendance(NamedTuple):
    """Who stays how long in one sum."""

    ids: NDArray[np.int64]
    lost_at: NDArray[np.int64]  # the first answer that a client does not give; beyond the last where it gives all
    arrives: NDArray[np.bool_]  # its vector, which is in the sum even if it is lost later
    void: bool  # too few stay to the end: there is no sum, and nobody trains

    @property
    def trains(self) -> NDArray[np.bool_]:
        return self.arrives & (not self.void)


class Summed(NamedTuple):
    """What a sum took: bytes of all its clients, and what the record says of it."""

    up: int
    down: int
    said: Tree


class Summation(ABC):
    """How the sums of a round are made. All of one is known before anybody trains, apart from the sum.

    What it remembers between rounds is a part of the round's state, which `init` gives and the others read.
    """

    @property
    @abstractmethod
    def secret(self) -> bool:
        """Does the server learn sums alone? Then what a client sends by itself is only that it is ready."""

    def cautions(self) -> tuple[str, ...]:
        """What whoever starts the run should know of its sums."""
        return ()

    @abstractmethod
    def reducer(self, named: Reducer[Any]) -> Reducer[Any]:
        """The reducer that makes the sum: the named one, or one that drives a protocol."""

    @abstractmethod
    def init(self, like: Tree) -> Tree:
        """Parts of a round's state, for updates that arrive like this one; {} for none."""

    @abstractmethod
    def begun(self, state: Tree) -> Tree:
        """These parts when the run begins: what must be measured is measured now."""

    @abstractmethod
    def residues(self, chain: Chain) -> Chain:
        """A chain with what must be at its end where its sums are made so."""

    @abstractmethod
    def attendance(self, number: int, ids: Tensor, asked: int | None = None) -> Attendance:
        """Who of these clients stays in sum `number`; of so many that were asked, where sums differ in that."""

    @abstractmethod
    def overhead(self, state: Tree, attendance: Attendance) -> Overhead | None:
        """What it takes in virtual time; None: nothing."""

    @abstractmethod
    def planned(self, reducer: Tree, attendance: Attendance, number: int) -> Tree:
        """The reducer's state with what it must know of this sum."""

    @abstractmethod
    def summed(self, state: Tree, attendance: Attendance, diagnostics: Tree) -> Summed | None:
        """What it took, with the diagnostics of the reducer that made it; None: no more than the updates."""
