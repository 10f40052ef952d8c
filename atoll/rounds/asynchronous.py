"""A server that does not wait for all: it makes its step with whoever has come back, however old their models are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from atoll import tree
from atoll.clock import Barrier, Clock, Flights, Flow, FlowStep, Messages, Timeline
from atoll.core import (
    PLAYED_ROUNDS,
    Algorithm,
    Context,
    Model,
    Outcome,
    Part,
    Play,
    Reducer,
    Round,
    RoundTraits,
    Summation,
    Summed,
    Total,
    Traffic,
    Train,
    Transform,
)
from atoll.errors import ConfigError
from atoll.reducers import Discounted, StalenessDiscount
from atoll.rounds.algorithm_needs import OTHERS, check_needs
from atoll.rounds.clocked import NAME as CLOCK
from atoll.rounds.clocked import begun_clock, bytes_of, clock_state, never_waits
from atoll.rounds.reports_as_they_come import ReportsAsTheyCome
from atoll.rounds.server_step import client_key, server_state, server_step
from atoll.rounds.stale_updates import StaleUpdates
from atoll.rounds.summation import PlainSummation
from atoll.tree import Tree
from atoll.wire import EMPTY_BYTES

S = TypeVar("S")
_REFUSED: dict[Part, str] = {
    "broadcast": "sends a client the difference to the model before, and here clients hold models of different age. "
    "Leave it out, or use round.name = 'central'.",
    "privacy.canaries": "are planted in cohorts that a sampler draws beforehand, and here whoever comes first is in "
    "the sum. Leave them out, or use round.name = 'central'.",
}


class _Versions(NamedTuple):
    """Broadcasts that somebody in flight was sent, and the newest; a row that nobody needs has the newest."""

    numbers: np.ndarray[Any, np.dtype[np.int64]]  # (R,) server steps before each
    sent: list[Tree]

    @classmethod
    def read(cls, state: Tree, needed: Any, version: int, newest: Tree) -> _Versions:
        old = state["numbers"].cpu().numpy()
        stays = np.isin(old, needed) & np.isin(np.arange(len(old)), np.unique(old, return_index=True)[1])
        sent = [state["sent"][str(i)] if stay else newest for i, stay in enumerate(stays)]
        return cls(np.where(stays, old, version), sent)

    def of(self, version: int) -> Tree:
        return self.sent[int(np.flatnonzero(self.numbers == version)[0])]

    def written(self) -> Tree:
        return {"numbers": torch.from_numpy(self.numbers.copy()), "sent": {str(i): x for i, x in enumerate(self.sent)}}


@dataclass(frozen=True, eq=False)
class Asynchronous(Round):
    """Clients work at their own pace; the server makes a step when its barrier says so (Xie 2019, Nguyen 2022).

    One round is one step of the server: w <- w + server_lr mean of s(t_k) (w_k - w_sent_k), t_k the steps made since
    client k was sent its model. With mixing = "model" it is w <- (1 - alpha s) w + alpha s w_k. Clients are trained
    when they are due, with this step's settings, all of a step as one stack.

    With a protocol a client reports that it is ready. When the buffer is full, those in it are the protocol's clients:
    they scale their updates by s(t_k) themselves, and the server makes its step when it has their sum.
    """

    concurrency: int  # clients at work at a time
    barrier: Barrier
    discount: StalenessDiscount
    mixing: Literal["update", "model"] = "update"
    clock: Clock = field(default_factory=lambda: Clock(seconds_per_step=1.0))
    steps: Callable[[Tensor], Tensor] = torch.ones_like  # of each of these clients in one training
    summation: Summation = PlainSummation()  # of those in a buffer

    def traits(self) -> RoundTraits:
        cautions = self.summation.cautions()
        return RoundTraits(selects_by_time=True, cautions=cautions, refuses=_REFUSED | self._no_crowd())

    def summed_by(self, summation: Summation, level: int) -> Round | None:
        return replace(self, summation=summation, discount=StalenessDiscount())

    def before_sums(self) -> tuple[Transform, ...]:
        return () if self.discount.changes_nothing else (StaleUpdates(self.discount),)

    def check_untimed(self) -> None:
        raise ConfigError(
            "round.name: who comes back first is decided by time, and there is none. Add [clock] with seconds_per_step "
            "and devices (docs/clock.md), or use round.name = 'central'."
        )

    def check(self, algorithm: Algorithm) -> None:
        counted = f"which updates of different age put out of step. Use round.name = 'central', {OTHERS}."
        check_needs(algorithm, "and there is nobody to wait for. Use round.name = 'central'.", counted)

    def sampler(self, named: S) -> S:
        return ReportsAsTheyCome(named, self.concurrency, self.barrier.buffer)  # type: ignore[return-value]

    def most_at_once(self, asked: int) -> int:
        return min(asked, self.barrier.buffer or self.concurrency)

    def reducer(self, named: Reducer[Any]) -> Reducer[Any]:
        return self.summation.reducer(named if self.discount.changes_nothing else Discounted(named, self.discount))

    def in_virtual_time(self, clock: Clock, steps: Callable[[Tensor], Tensor]) -> Round | None:
        never_waits(clock, "This one goes on by round.buffer and round.window; deadline is the most of one client")
        return replace(self, clock=clock, steps=steps)

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        state = server_state(ctx, model, key)
        sent = ctx.algorithm.send(state["server"])
        if self.mixing == "model":
            _check_whole(ctx.update_like, sent)
        stale = self.barrier.max_staleness
        rows = self.concurrency + 1 if stale is None else min(self.concurrency, stale) + 1
        versions = _Versions(np.zeros(rows, np.int64), [sent] * rows).written()
        flights = _written(Flights.nobody(self.concurrency))
        more = {"flights": flights, "versions": versions, "version": torch.zeros((), dtype=torch.int64)}
        return {**state, **more, CLOCK: clock_state(self.clock, ctx), **self.summation.init(ctx.program.like)}

    def begun(self, state: Tree, seconds_per_step: Callable[[], float]) -> Tree:
        clock = {CLOCK: begun_clock(self.clock, state[CLOCK], seconds_per_step)}
        return {**state, **clock, **self.summation.begun(state)}

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        pool, participation = ctx.sample()
        newest, view = self.broadcast(ctx, state, pool)
        version, messages = int(state["version"]), self._messages(ctx, state, newest)
        step = self._step(state, pool, messages)
        attendance = self.summation.attendance(ctx.number, torch.from_numpy(step.reports.id.copy()))
        step = self._flow.after_protocol(step, self.summation.overhead(state, attendance))
        came = step.reports.rows(attendance.trains)
        needed = np.concatenate([came.version, step.flights.version[step.flights.busy]])
        versions = _Versions.read(state["versions"], needed, version, newest)
        request = _request(ctx, versions, came, view, version, client_key(key))
        trained = yield request
        planned = {**state, "reducer": self.summation.planned(state["reducer"], attendance, ctx.number)}
        made = server_step(ctx, planned, trained, key, self._adjusted(versions, came, newest, version))
        summed = self.summation.summed(state, attendance, made.diagnostics)
        says = {**made.diagnostics, "staleness": _staleness(version - came.version), **_in_flight(step, version)}
        says |= {} if summed is None else summed.said
        traffic = _traffic(ctx, step, newest, summed)
        columns = (trained.examples, trained.columns, traffic, made.changed, says, step.timeline(messages))
        at_work = step.flights.version[step.flights.busy]
        later = {
            "flights": _written(step.flights),
            "versions": _Versions.read(versions.written(), at_work, version, newest).written(),
            "version": torch.tensor(version + 1),
            CLOCK: {**state[CLOCK], "now": torch.tensor(step.end, dtype=torch.float64)},
        }
        return {**state, **made.state, **later}, Outcome(request.ids, participation, *columns)

    def forecast(self, first: Timeline, pools: Callable[[int], Tensor], rounds: int) -> list[Timeline]:
        down, up = float(np.max(first.down)), float(np.max(first.up))
        messages = Messages(down, up, first.seconds_per_step, first.seconds_to_compress)
        asked = (rounds, self.concurrency, lambda number: pools(number).numpy())
        return self._flow.many(*asked, messages, first.overhead)

    def total_bytes(
        self, ctx: Context, state: Tree, first: Outcome, pools: Callable[[int], Tensor], rounds: int
    ) -> dict[str, int]:
        """Of the steps that the forecast of time plays; a protocol's are those of the first, every time."""
        if self.summation.secret or first.timeline is None:
            return {way: n * rounds for way, n in first.bytes().items()}
        down, up = self.message_bytes(ctx, state, first.ids)
        played = min(rounds, PLAYED_ROUNDS)
        lines = self.forecast(first.timeline, pools, played)
        heard = sum(int((line.received <= line.end).sum()) for line in lines)
        reports = sum(int(line.counted.sum()) for line in lines)
        return {way: round(float(n) * rounds / played) for way, n in (("up", reports * up), ("down", heard * down))}

    @property
    def _flow(self) -> Flow:
        return Flow(self.clock, self.barrier, lambda ids: self.steps(torch.from_numpy(ids)).numpy())

    def _messages(self, ctx: Context, state: Tree, newest: Tree) -> Messages:
        pace, compressing = (float(state[CLOCK][name]) for name in ("seconds_per_step", "seconds_to_compress"))
        down, up = bytes_of(ctx, newest)
        return Messages(down, EMPTY_BYTES if self.summation.secret else up, pace, compressing)

    def _step(self, state: Tree, pool: Tensor, messages: Messages) -> FlowStep:
        flights = Flights(*(state["flights"][name].cpu().numpy() for name in Flights._fields))
        return self._flow.step(int(state["version"]), float(state[CLOCK]["now"]), flights, pool.cpu().numpy(), messages)

    def _no_crowd(self) -> dict[Part, str]:
        """Why a buffer is none to hide in, if it is not."""
        why: dict[int | None, str] = {
            None: "bounds a sum by how many clients are in it, and a window alone has no such number. Add "
            "round.buffer, the most of one step.",
            1: "hides a client among those of its sum, and with round.buffer = 1 the sum is one client's update. Use "
            "round.name = 'fedbuff' with a buffer of 3 or more, or leave [secure] out.",
        }
        return {"secure": why[self.barrier.buffer]} if self.barrier.buffer in why else {}

    def _adjusted(
        self, versions: _Versions, came: Flights, newest: Tree, version: int
    ) -> Callable[[Total], Total] | None:
        """For models that are mixed: the way from the server's model to the one that the client was sent."""
        if self.mixing == "update" or not len(came.id):
            return None
        stale = version - int(came.version[0])
        by = self.discount(torch.tensor(float(stale)))
        lag = tree.sub(versions.of(version - stale), newest)
        return lambda total: _with_lag(total, lag, by)


def _request(ctx: Context, versions: _Versions, came: Flights, view: Tree, version: int, key: Tensor) -> Train:
    """The training of all who came, each from the model that it was sent; of one broadcast where that was the same."""
    ids, staleness = torch.from_numpy(came.id.copy()), torch.from_numpy(version - came.version)
    if not len(ids) or len(set(came.version.tolist())) == 1:
        sent = versions.of(int(came.version[0])) if len(ids) else versions.sent[0]
        return ctx.train(sent, view, ids, key, staleness=staleness)
    sent = tree.map(lambda *rows: torch.stack(rows), *(versions.of(v) for v in came.version.tolist()))
    return ctx.train(sent, tree.stack(view, len(ids)), ids, key, per_client=True, staleness=staleness)


def _with_lag(total: Total, lag: Tree, by: Tensor) -> Total:
    """Mixed: the client's update was made from another model than the server's."""
    weight = total.weight * by.to(total.weight.device)
    value = {**total.value, "delta": tree.add_scaled(total.value["delta"], lag["params"], weight)}
    value["buffers"] = tree.map(lambda x, y: x + tree.cast_like(y * weight, x), value["buffers"], lag["buffers"])
    return replace(total, value=value)


def _check_whole(update: Tree, sent: Tree) -> None:
    """Refuse to mix models that are not in what clients send and are sent."""
    pairs = (("delta", "params"), ("buffers", "buffers"))
    if not all(a in update and b in sent and _names(update[a]) == _names(sent[b]) for a, b in pairs):
        raise ConfigError(
            "round.mixing: mixes whole models, and clients of this algorithm send no whole one. "
            "Use mixing = 'update' (round.name = 'asynchronous'), or an algorithm such as fedavg."
        )


def _names(part: Tree) -> list[str]:
    return [path for path, _ in tree.paths(part)]


def _traffic(ctx: Context, step: FlowStep, sent: Tree, summed: Summed | None) -> Traffic:
    """Counted when a client is heard of: whole messages, of those that were lost what was through.

    With a protocol its bytes take the place of the updates', beside every client's word that it is ready.
    """
    reports = ctx.traffic(len(step.reports.id), sent)
    others = ctx.traffic(int((step.others.received <= step.end).sum()), sent)
    if summed is None:
        return Traffic(reports.up, reports.down + others.down)
    return Traffic(summed.up + len(step.reports.id) * EMPTY_BYTES, reports.down + others.down + summed.down)


def _staleness(staleness: Any) -> Tree:
    """For the record: the server's steps since each client was sent its model."""
    if not len(staleness):
        return {"mean": torch.tensor(0.0), "max": torch.tensor(0), "histogram": torch.zeros(0, dtype=torch.int64)}
    counts = torch.from_numpy(np.bincount(staleness).astype(np.int64))
    return {
        "mean": torch.tensor(float(staleness.mean())),
        "max": torch.tensor(int(staleness.max())),
        "histogram": counts,
    }


def _in_flight(step: FlowStep, version: int) -> Tree:
    at_work = step.flights.rows(step.flights.busy)
    numbers = {"version": version + 1, "in_flight": len(at_work.id), "versions_in_flight": len(set(at_work.version))}
    return {name: torch.tensor(x) for name, x in numbers.items()}


def _written(flights: Flights) -> Tree:
    return {name: torch.from_numpy(x.copy()) for name, x in zip(Flights._fields, flights, strict=True)}
