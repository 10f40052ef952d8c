"""Where a round runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from atoll.core.algorithm import Algorithm
from atoll.core.reducer import Reducer
from atoll.core.transform import Chain
from atoll.core.types import Cohort
from atoll.tree import Tree


class Store(Protocol):
    """Every client's memory, addressed by client id. Only engines touch it during a round."""

    def read(self, ids: Tensor) -> Tree:
        """Rows of these clients, stacked."""
        ...

    def write(self, ids: Tensor, rows: Tree) -> None:
        """Keep these rows."""
        ...


@dataclass(frozen=True)
class Job:
    """One round's work: what every client of the cohort does, and how the updates become one."""

    algorithm: Algorithm  # the same object in every round; the round's numbers are in `settings`
    chain: Chain
    reducer: Reducer
    settings: Tree  # {"algorithm", "chain"}: numeric settings of this round as 0-dim tensors
    sent: Tree
    state: Tree  # of the chain, as the server has it
    cohort: Cohort
    memory: Store
    key: Tensor
    each: bool = False  # `sent` has a row for every client of the cohort (no common server)
    meanwhile: Callable[[], None] | None = None  # what the host may do while a device is at work


@dataclass(frozen=True)
class Result:
    """What came of a job. `total` is None when no client could contribute."""

    total: Any
    loss: Tensor  # (C,) mean training loss of each client, in the order of the cohort
    finite: Tensor  # (C,) False where loss or update was not a number: those clients were left out
    order: Tensor  # positions in the cohort of those that were not, as the reducer saw them
    signal: Tensor | None = None  # the length of the sum before noise, where there is noise


@dataclass(frozen=True)
class Begun:
    """A job whose outcome has not been looked at: its total, if every client's numbers turn out to be finite.

    A device may still be at work on it, so the host can say what comes next. `result()` waits, and has another total
    where somebody had to be left out.
    """

    total: Any
    result: Callable[[], Result]

    @classmethod
    def of(cls, result: Result) -> Begun:
        """One that is over."""
        return cls(result.total, lambda: result)


class Engine(Protocol):
    """Runs every client's program, then the reducer."""

    def run(self, job: Job) -> Result:
        """Do the job."""
        ...


def begun(engine: Engine, job: Job) -> Begun:
    """The job, looked at as late as the engine can."""
    if hasattr(engine, "begin"):
        found: Begun = engine.begin(job)
        return found
    return Begun.of(engine.run(job))
