"""A round in virtual time: who reports too late, or not at all, is not in the sum."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from atoll import rng, tree
from atoll.clock import Clock, Floats, Ints, Overhead, Timeline
from atoll.core import PLAYED_ROUNDS, Context, Model, Outcome, Play, Round, Traffic, Update
from atoll.errors import ConfigError
from atoll.rounds.around import RoundAround
from atoll.tree import Tree
from atoll.wire import wire_bytes

NAME = "clock"
_NUMBERS = ("now", "seconds_per_step", "seconds_to_compress")
_TURNS = 4  # of measuring; the first one warms up


@dataclass(frozen=True, eq=False)
class Clocked(RoundAround):
    """A round around another. The timeline of a cohort is known before anybody trains, since its steps and bytes are.

    Where a length depends on numbers, time is of the longest message while it may decide who counts; where all do
    whatever it takes, the round is timed after training, by what was sent.

    The inner round sees only those whose reports count. Whoever is late or lost leaves no trace: its update is in no
    sum, and what it keeps between rounds is as it was before. A void round is one to which nobody came.
    """

    clock: Clock
    steps: Callable[[Tensor], Tensor]  # of each of these clients in a round

    @classmethod
    def around(cls, inner: Round, clock: Clock, steps: Callable[[Tensor], Tensor]) -> Clocked:
        """A ConfigError where there is no server that could wait."""
        if inner.traits().per_client:
            raise ConfigError(
                "clock: times a server that sends a model and waits for reports, and in this round there is no server. "
                "Leave [clock] out, or use round.name = 'central'."
            )
        return cls(inner, clock, steps)

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        return {**self.inner.init(ctx, model, key), NAME: clock_state(self.clock, ctx)}

    def begun(self, state: Tree, seconds_per_step: Callable[[], float]) -> Tree:
        inner = self.inner.begun(tree.without(state, (NAME,)), seconds_per_step)
        return {**inner, NAME: begun_clock(self.clock, state[NAME], seconds_per_step)}

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        timeline, now = self.times(ctx, state, key)
        inner = tree.without(state, (NAME,))
        new, outcome = yield from self.inner.run(_with_reports(ctx, timeline), inner, key)
        outcome = replace(outcome, traffic=_with_wasted(outcome.traffic, timeline), timeline=timeline)
        if not self.clock.leaves_out and self.inner.lengths_vary(ctx, inner):
            timeline, now = self.retimed(ctx, state, outcome, now)
            outcome = replace(outcome, timeline=timeline)
        return {**new, NAME: _later(state, now)}, outcome

    def retimed(
        self, ctx: Context, state: Tree, outcome: Outcome, now: float | Floats
    ) -> tuple[Timeline, float | Floats]:
        """A round in which all count, once it is known how long their messages were; and when the next one begins."""
        sent = outcome.timeline_as_sent()
        assert sent is not None
        timeline = self._timeline(ctx, state, sent.ids, sent.steps, sent.down, sent.up, sent.overhead)
        return timeline, timeline.end

    def timed(self, ctx: Context, state: Tree, key: Tensor) -> tuple[Timeline, Tree]:
        timeline, now = self.times(ctx, state, key)
        counted = torch.from_numpy(timeline.ids[timeline.counted])
        new = self.inner.after(ctx, tree.without(state, (NAME,)), counted)
        return timeline, {**new, NAME: _later(state, now)}

    def total_bytes(
        self, ctx: Context, state: Tree, first: Outcome, pools: Callable[[int], Tensor], rounds: int
    ) -> dict[str, int]:
        """Of those who count in each round, and what others had sent and were sent when the server went on."""
        inner = tree.without(state, (NAME,))
        if not self.clock.leaves_out:
            return self.inner.total_bytes(ctx, inner, first, pools, rounds)
        lines, played = list[Timeline](), min(rounds, PLAYED_ROUNDS)
        for number in range(played):
            line, state = self.timed(_drawn(ctx, number, pools(number)), state, rng.key(self.clock.seed, number))
            lines.append(line)
        counted = [torch.from_numpy(line.ids[line.counted]) for line in lines]
        total = self.inner.total_bytes(ctx, inner, _without_wasted(first), lambda number: counted[number], played)
        others = np.sum([_wasted(line) for line in lines], axis=0)
        mine = zip(("down", "up"), others, strict=True)
        return {way: round((total[way] + int(more)) * rounds / played) for way, more in mine}

    def times(self, ctx: Context, state: Tree, key: Tensor) -> tuple[Timeline, float | Floats]:
        """The cohort's timeline, and when the next round begins: for all, or (N,) for each client."""
        ids, _ = ctx.sample()
        inner = tree.without(state, (NAME,))
        down, up = self.inner.message_bytes(ctx, inner, ids)
        overhead = self.inner.overhead(ctx, inner, ids)
        if overhead is not None:
            down, up = overhead.around(down)
        timeline = self._timeline(ctx, state, ids.numpy(), self.steps(ids).numpy(), down, up, overhead)
        return timeline, timeline.end

    def _timeline(
        self,
        ctx: Context,
        state: Tree,
        ids: Ints,
        steps: Ints,
        down: float | Floats,
        up: float | Floats,
        overhead: Overhead | None,
    ) -> Timeline:
        now, pace, compressing = (float(state[NAME][name]) for name in _NUMBERS)
        return self.clock.timeline(ctx.number, ids, steps, down, up, now, pace, overhead, compressing)


def clock_state(clock: Clock, ctx: Context) -> Tree:
    """What a round in virtual time remembers: the time, and how fast a client of slowness 1 is; NaN: not timed yet."""
    pace, compressing = clock.seconds_per_step, clock.seconds_to_compress
    now = {"now": _number(0.0), "seconds_per_step": _number(np.nan if pace is None else pace)}
    return {**now, "seconds_to_compress": _number(_measured(ctx) if compressing is None else compressing)}


def begun_clock(clock: Clock, now: Tree, seconds_per_step: Callable[[], float]) -> Tree:
    """The same when the run begins: where the pace is that of this machine, it is timed."""
    if clock.seconds_per_step is not None:
        return now
    return {**now, "seconds_per_step": torch.full_like(now["seconds_per_step"], seconds_per_step())}


def never_waits(clock: Clock, instead: str) -> None:
    """Refuse what only a server that waits for its cohort can do."""
    patience = clock.patience
    given = {
        "over_selection": patience.wanted is not None,
        "min_reports": patience.min_reports > 1,
        "grace": patience.grace > 0,
    }
    for name in (name for name, there in given.items() if there):
        raise ConfigError(f"clock.{name}: is for one server that waits for a cohort. {instead}. Leave it out.")


def refuse_waiting(clock: Clock, title: str) -> None:
    """Deadlines and lost clients are about a server that waits (ConfigError)."""
    patience = clock.patience
    asked = {
        "deadline": np.isfinite(patience.deadline),
        "over_selection": patience.wanted is not None,
        "min_reports": patience.min_reports > 1,
        "dropout": clock.dropout > 0,
        "availability": clock.availability != 1.0,
    }
    for name, given in asked.items():
        if given:
            raise ConfigError(
                f"clock.{name}: is about a server that waits for reports, and with {title} nodes wait for their "
                f"neighbours. Leave it out (devices and links are timed), or use round.name = 'central'."
            )


def _measured(ctx: Context) -> float:
    """Seconds that one client's transforms take here for one update: the least of some turns."""
    chain, device = ctx.program.chain, tree.device(ctx.update_like)
    update = Update(tree.map(torch.ones_like, ctx.update_like), torch.ones((), device=device))
    state, own = chain.init(ctx.update_like)
    seconds = []
    for turn in range(_TURNS):
        began = time.perf_counter()
        sent, _ = chain.client(update, chain.client_view(state), own, rng.key("measured", turn).to(device))
        _ = [float(x.flatten()[:1].sum()) for x in tree.leaves(sent.value)]  # a device is waited for
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def bytes_of(ctx: Context, sent: Tree) -> tuple[float, float]:
    """Bytes of the message to each client, and of the one from it: at most, where that depends on its numbers."""
    return float(wire_bytes(sent)), float(ctx.program.upload.most_bytes)


def _later(state: Tree, now: float | Floats) -> Tree:
    """The clock's own state with another time."""
    before = state[NAME]["now"]
    return {**state[NAME], "now": torch.as_tensor(now, dtype=before.dtype).to(before.device)}


def _with_reports(ctx: Context, timeline: Timeline) -> Context:
    """The round as the inner one sees it: drawn as it was, with those that count."""
    if timeline.counted.all():
        return ctx
    ids, participation = ctx.sample()
    counted = ids[torch.from_numpy(timeline.counted)]
    return replace(ctx, sample=lambda: (counted, participation))


def _drawn(ctx: Context, number: int, ids: Tensor) -> Context:
    """Another round, to which these clients are asked."""
    participation = ctx.sample()[1]
    return replace(ctx, number=number, sample=lambda: (ids, participation))


def _wasted(timeline: Timeline) -> tuple[int, int]:
    """Down and up: whole messages of those that do not count, as far as they were through when the server went on."""
    others = ~timeline.counted
    down = int(((others & (timeline.received <= timeline.end)) * timeline.down).sum())
    return down, int(((others & (timeline.arrived <= timeline.end)) * timeline.up).sum())


def _with_wasted(traffic: Traffic, timeline: Timeline) -> Traffic:
    down, up = _wasted(timeline)
    return Traffic(traffic.up, traffic.down + down, traffic.wasted + up)


def _without_wasted(outcome: Outcome) -> Outcome:
    """As the inner round told it."""
    assert outcome.timeline is not None
    down, up = _wasted(outcome.timeline)
    traffic = outcome.traffic
    return replace(outcome, traffic=Traffic(traffic.up, traffic.down - down, traffic.wasted - up))


def _number(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)
