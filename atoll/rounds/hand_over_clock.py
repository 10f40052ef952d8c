"""Virtual time of models that clients hand on to each other, or train alone.

A relay knows every model: what a client trained goes up to it, and the model goes down to the next one, so that bytes
and seconds are those of the record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from atoll import tree
from atoll.clock import COUNTED, Clock, Floats, Ints, Timeline, transfer_seconds
from atoll.core import Context, Model, Outcome, Round
from atoll.rounds.clocked import NAME, Clocked, refuse_waiting
from atoll.tree import Tree

if TYPE_CHECKING:
    from atoll.rounds.cyclic import CyclicTransfer


class _Work(NamedTuple):
    """What the clients of a round have to do."""

    ids: Ints
    steps: Ints
    down: float
    up: float
    pace: float
    compressing: float


@dataclass(frozen=True, eq=False)
class HandedOn(Clocked):
    """The clock of a round in which nobody waits for reports."""

    title: ClassVar[str]  # as messages call it

    @classmethod
    def around(cls, inner: Round, clock: Clock, steps: Callable[[Tensor], Tensor]) -> HandedOn:
        refuse_waiting(clock, cls.title)
        return cls(inner, clock, steps)

    def retimed(
        self, ctx: Context, state: Tree, outcome: Outcome, now: float | Floats
    ) -> tuple[Timeline, float | Floats]:
        """As it was: by the longest message that there could be."""
        assert outcome.timeline is not None
        return outcome.timeline, now

    def _work(self, ctx: Context, state: Tree, ids: Tensor) -> _Work:
        down, up = self.inner.message_bytes(ctx, tree.without(state, (NAME,)), ids)
        pace, compressing = (float(state[NAME][name]) for name in ("seconds_per_step", "seconds_to_compress"))
        return _Work(ids.numpy(), self.steps(ids).numpy(), float(np.max(down)), float(np.max(up)), pace, compressing)

    def _trip(self, work: _Work, begins: float | Floats, rows: slice = slice(None)) -> tuple[Floats, ...]:
        """Received, sent, arrived and the seconds of compressing, of these clients."""
        asked = work.ids[rows], work.steps[rows], work.down, work.up, begins, work.pace
        return self.clock.undisturbed(*asked, compressing=work.compressing)[:4]


@dataclass(frozen=True, eq=False)
class CycleClocked(HandedOn):
    """A model is sent to a client, trained, sent back, and only then sent to the next one; rings go side by side."""

    title = "cyclic transfer"

    def times(self, ctx: Context, state: Tree, key: Tensor) -> tuple[Timeline, float]:
        ids, rings = cast("CyclicTransfer", self.inner).queue(ctx.sample()[0], key)
        work, now = self._work(ctx, state, ids), float(state[NAME]["now"])
        begins, columns = np.full(rings, now), list[tuple[Floats, ...]]()
        for first in range(0, len(ids), rings):
            rows = slice(first, first + rings)
            here = begins[: len(work.ids[rows])]
            columns.append((here.copy(), *self._trip(work, here, rows)))
            begins[: len(here)] = columns[-1][3]
        return _timeline(work, now, float(begins.max()), columns), float(begins.max())


@dataclass(frozen=True, eq=False)
class RingClocked(HandedOn):
    """A client begins when what the one before it trained is there: a slow one holds up who comes after it."""

    title = "ring transfer"

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        return _each_at_its_own_time(super().init(ctx, model, key), ctx.population)

    def times(self, ctx: Context, state: Tree, key: Tensor) -> tuple[Timeline, Floats]:
        """When each client's next model is ready to be sent to it."""
        ids = ctx.sample()[0].sort().values
        work, ready = self._work(ctx, state, ids), state[NAME]["now"].cpu().numpy().copy()
        begins = ready[work.ids]
        trip = self._trip(work, begins)
        ready[np.roll(work.ids, -1)] = trip[2]
        end = float(ready.max())
        return _timeline(work, float(begins.min(initial=end)), end, [(begins, *trip)]), ready


@dataclass(frozen=True, eq=False)
class AloneClocked(HandedOn):
    """Everybody is sent the model once and trains on; a line ends when all who have trained would have sent theirs."""

    title = "one shot"

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        return _each_at_its_own_time(super().init(ctx, model, key), ctx.population)

    def times(self, ctx: Context, state: Tree, key: Tensor) -> tuple[Timeline, Floats]:
        """When each client has trained so far; 0: not yet."""
        ids, trained = ctx.sample()[0], state[NAME]["now"].cpu().numpy().copy()
        work, began = self._work(ctx, state, ids), trained[ids.numpy()]
        received, sent, _, compressed = self._trip(work, 0.0)
        seconds = sent - received
        received = np.where(began > 0, began, received)
        trained[work.ids] = received + seconds
        device = self.clock.devices.profile(np.arange(ctx.population))
        link = device.up, device.latency, device.loss
        arrives = np.where(trained > 0, trained + transfer_seconds(work.up, *link, self.clock.slow_start), 0.0)
        end, columns = float(arrives.max()), (began, received, trained[work.ids], arrives[work.ids], compressed)
        first = began == 0
        line = _timeline(work, float(began.min(initial=end)), end, [columns])
        return replace(line, down=work.down * first, up=work.up * first), trained


def _each_at_its_own_time(state: Tree, population: int) -> Tree:
    return {**state, NAME: {**state[NAME], "now": torch.zeros(population, dtype=torch.float64)}}


def _timeline(work: _Work, start: float, end: float, columns: list[tuple[Floats, ...]]) -> Timeline:
    none = [(np.zeros(0),) * 5]
    began, received, sent, arrived, compressed = (np.concatenate(c) for c in zip(*(columns or none), strict=True))
    status = np.full(len(work.ids), COUNTED, np.int8)
    clients = work.ids, work.steps, received, sent, arrived, status
    timed = Timeline(start, end, *clients, False, work.down, work.up, work.pace, began=began)
    more: dict[str, Any] = {"seconds_to_compress": work.compressing, "compressed": compressed}
    return replace(timed, **more) if work.compressing else timed
