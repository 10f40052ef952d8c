"""What a round asks for, and how it is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll import tree
from atoll.core.algorithm import Algorithm
from atoll.core.reducer import Reducer
from atoll.core.task import Model
from atoll.core.transform import Chain
from atoll.tree import Tree
from atoll.wire import Layout

R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class Program:
    """What every client of a request runs, and how their updates become one.

    The same object in every round, so that engines can keep what they made for it; a round's numbers are data
    (`Train.settings`).
    """

    algorithm: Algorithm
    chain: Chain
    reducer: Reducer[Any]
    like: Tree  # zeros in the shape of an update as it arrives at the server
    upload: Layout = Layout(())  # how an update travels


@dataclass(frozen=True, eq=False)
class Train:
    """Run the client program on these clients, and reduce their updates. Answered by `Trained`."""

    program: Program
    settings: Tree  # {"algorithm", "chain"}: numeric settings of this round as 0-dim tensors
    sent: Tree  # the broadcast; with `per_client` a row for every client
    state: Tree  # of the chain, as clients see it; with `per_client` a row for every client
    ids: Tensor  # (C,)
    key: Tensor  # what clients draw from
    order: Tensor  # what the order of their examples is drawn from
    per_client: bool = False  # no common server: every client is sent its own
    staleness: Tensor | None = None  # (C,) rounds since each was sent its model; None: 0
    max_steps: int | None = None  # fewer steps than a client's examples give; 0: what it has before training
    client_state: Literal["update", "read", "none"] = "update"  # what a client keeps: written, read, or not there
    row_table: int = 0  # which of the population's tables of rows they read: 0 for their own, 1 for a poisoned one

    def rows(self, index: slice | Tensor) -> Train:
        """The same for some of the clients."""
        if not self.per_client:
            return replace(self, ids=self.ids[index], staleness=_rows(self.staleness, index))
        sent, state = (_tree_rows(x, index) for x in (self.sent, self.state))
        return replace(self, ids=self.ids[index], staleness=_rows(self.staleness, index), sent=sent, state=state)


@dataclass(frozen=True, eq=False)
class Trained:
    """What came of a `Train`. Clients whose numbers are not finite were left out of `partial`."""

    partial: Any  # what the program's reducer knows of all clients
    examples: Tensor  # (C,) on the host
    columns: Callable[[], Columns]  # on a device that is still at work, asking for them waits
    rows: float  # the examples of all who contributed, as far as is known

    @property
    def loss(self) -> Tensor:
        """(C,) mean training loss of each client, in the order of the request."""
        return self.columns().loss

    @property
    def finite(self) -> Tensor:
        """(C,) False where loss or update was not a number: those clients were left out."""
        return self.columns().finite

    @property
    def order(self) -> Tensor:
        """Positions in the request of those who were not left out, as the reducer saw them."""
        return self.columns().order

    @classmethod
    def settled(cls, partial: Any, examples: Tensor, columns: Columns) -> Trained:
        """One whose numbers are there."""
        rows = float(examples.numpy() @ columns.finite.cpu().numpy())
        return cls(partial, examples, lambda: columns, rows)


class Columns(NamedTuple):
    """One entry for each client of a request."""

    loss: Tensor
    finite: Tensor
    order: Tensor
    upload: Tensor | None = None  # bytes of each update on the wire, where they depend on the data


@dataclass(frozen=True, eq=False)
class Evaluate:
    """Measure models on examples. Answered by `Evaluated`: metrics, never rows.

    `model` is measured on the test data, on an attack's probe, or on each client's own examples; without it, what each
    client itself predicts with (`snapshot` makes these models and keeps nothing of it).
    """

    on: Literal["test", "own", "probe"]
    ids: Tensor  # (C,) whose examples, or whose models
    model: Model | None = None
    snapshot: Train | None = None
    together: bool = False  # `model` is a stack of models, which predict by the mean of their probabilities


@dataclass(frozen=True)
class Evaluated:
    """Metrics by name, one number for each client; one number in all where one model met the test data."""

    metrics: dict[str, NDArray[np.float64]]
    finite: NDArray[np.bool_]  # are the models numbers? Metrics of those that are not are NaN


class Message(NamedTuple):
    """What one party sends another: named, and a tree, so that every message can be encoded and counted."""

    kind: str
    body: Tree


@dataclass(frozen=True)
class Exchange:
    """Deliver these messages to the parties. Answered by theirs, by party; who does not answer is not in it."""

    outbox: Mapping[int, Message]


Request = Train | Evaluate | Exchange


@dataclass(frozen=True, eq=False)
class Pending(Generic[R]):
    """An answer that a device may still be at work on.

    `promised` is what it will be if every client's numbers are finite, so that the host can say what comes next;
    `result()` waits, and is another one where somebody had to be left out.
    """

    promised: R
    result: Callable[[], R]

    @classmethod
    def done(cls, answer: R) -> Pending[R]:
        """One that is there."""
        return cls(answer, lambda: answer)


def _rows(column: Tensor | None, index: slice | Tensor) -> Tensor | None:
    return None if column is None else column[index]


def _tree_rows(rows: Tree, index: slice | Tensor) -> Tree:
    leaves = tree.leaves(rows)
    if not leaves:
        return rows
    return tree.rows(rows, index.to(leaves[0].device) if isinstance(index, torch.Tensor) else index)
