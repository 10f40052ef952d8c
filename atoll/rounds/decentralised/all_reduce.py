"""Nobody in the middle, and yet one model: nodes sum their updates among themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from atoll import tree
from atoll.clock import COUNTED, Clock, DeviceProfile, Timeline, transfer_seconds
from atoll.core import Context, Model, Outcome, Play, Reducer, Round, RoundTraits, Traffic, Transform, transform_name
from atoll.errors import ConfigError
from atoll.reducers import Mean
from atoll.rounds.clocked import NAME, Clocked, refuse_waiting
from atoll.rounds.decentralised.reduce_plans import Plan, SendSchedule, part_bounds, schedule
from atoll.rounds.decentralised.topology import Floats
from atoll.rounds.server_step import client_key, server_state, server_step
from atoll.tree import Tree
from atoll.wire import wire_bytes


@dataclass(frozen=True)
class AllReduce(Round):
    """Everybody holds the model; updates and weights are summed by a plan of sends, and all apply the same sum.

    w <- apply(w, sum_k n_k delta_k / sum_k n_k): the model of round.name = 'central', bit for bit; bytes and seconds
    are those of the plan: "ring" sends least, "tree" takes few steps, "full" one.
    """

    plan: Plan = "ring"

    def traits(self) -> RoundTraits:
        return RoundTraits(has_server=False)

    def reducer(self, named: Reducer[Any]) -> Reducer[Any]:
        if not isinstance(named, Mean):
            raise ConfigError(
                f"reducer.name: an all-reduce adds up, and {type(named).__name__} needs every update by itself. "
                "Leave reducer out, or use round.name = 'central'."
            )
        return named

    def in_virtual_time(self, clock: Clock, steps: Callable[[Tensor], Tensor]) -> Round:
        refuse_waiting(clock, "all_reduce")
        return PlanClocked(self, clock, steps)

    def facts(self, population: int) -> dict[str, Any]:
        return {
            "topology": {"nodes": population, "plan": self.plan, "steps": len(_schedule(self.plan, population).steps)}
        }

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        for i, transform in enumerate(ctx.program.chain.transforms):
            _check_transform(f"transform.{i}: {transform_name(transform)}", transform, ctx.update_like)
        return server_state(ctx, model, key)

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        ids, participation = ctx.sample()
        sent, chain = self.broadcast(ctx, state, ids)
        trained = yield ctx.train(sent, chain, ids, client_key(key))
        step = server_step(ctx, state, trained, key)
        total = self.bytes_sent(ctx, len(ids))
        said = {**step.diagnostics, "steps": torch.tensor(len(_schedule(self.plan, len(ids)).steps))}
        columns = trained.examples, trained.columns, Traffic(total, total)
        return step.state, Outcome(ids, participation, *columns, step.changed, said)

    def bytes_sent(self, ctx: Context, nodes: int) -> int:
        """Of all sends of the plan."""
        plan = _schedule(self.plan, nodes)
        sizes = part_bytes(plan, _numbers(ctx))
        return int(sum(sizes[step.part].sum() for step in plan.steps))


@dataclass(frozen=True, eq=False)
class PlanClocked(Clocked):
    """All train; then, step by step, who has sent and received all of one step begins the next."""

    def times(self, ctx: Context, state: Tree, key: Tensor) -> tuple[Timeline, float]:
        inner = cast("AllReduce", self.inner)
        ids = ctx.sample()[0]
        steps, plan = self.steps(ids).numpy(), _schedule(inner.plan, len(ids))
        now, pace = (float(state[NAME][name]) for name in ("now", "seconds_per_step"))
        device = self.clock.devices.profile(ids.numpy())
        done = now + steps * pace * device.slowness
        ends = plan_seconds(plan, part_bytes(plan, _numbers(ctx)), device, done, self.clock.slow_start)
        each = inner.bytes_sent(ctx, len(ids)) / max(1, len(ids))
        status = np.full(len(ids), COUNTED, np.int8)
        columns = (steps, np.full(len(ids), now), done, ends, status)
        timeline = Timeline(now, float(ends.max(initial=now)), ids.numpy(), *columns, False, each, each, pace)
        return timeline, timeline.end


def _check_transform(what: str, transform: Transform, like: Tree) -> None:
    """Refuse (ConfigError) what partial sums undo, or what promises something of a sum that only a server sees."""
    if transform.layout(like) is not None:
        raise ConfigError(
            f"{what} has messages of its own, which partial sums turn into plain numbers again, and these travel. "
            "Leave it out, or use round.name = 'central'."
        )
    if any(mechanism.has_server_side() for mechanism in transform.mechanisms()):
        raise ConfigError(
            f"{what} is accounted for a sum that only a server sees without noise, and in an all-reduce everybody sees "
            "parts of it. Use round.name = 'central', or noise of every client's own (local_gaussian)."
        )


def plan_seconds(plan: SendSchedule, sizes: Floats, device: DeviceProfile, begun: Floats, slow_start: bool) -> Floats:
    """When each node is through, from when each began; in a step a node shares its link among its messages."""
    now = begun.copy()
    for step in plan.steps:
        up = device.up[step.source] / np.bincount(step.source, minlength=plan.nodes)[step.source]
        down = device.down[step.target] / np.bincount(step.target, minlength=plan.nodes)[step.target]
        latency = device.latency[step.source] + device.latency[step.target]
        loss = 1 - (1 - device.loss[step.source]) * (1 - device.loss[step.target])
        sent = float(sizes[step.part].max())  # parts differ by one number at most
        through = now[step.source] + transfer_seconds(sent, np.minimum(up, down), latency, loss, slow_start)
        later = now.copy()
        np.maximum.at(later, step.target, through)
        np.maximum.at(later, step.source, through)
        now = later
    return now


def part_bytes(plan: SendSchedule, numbers: int) -> Floats:
    """(parts,) bytes of a message with each part."""
    counts = np.diff(part_bounds(plan, numbers))
    known = {int(n): wire_bytes({"part": torch.empty(int(n), device="meta")}) for n in np.unique(counts)}
    return np.array([known[int(n)] for n in counts])


def _numbers(ctx: Context) -> int:
    """In an update and its weight."""
    return tree.count(ctx.program.like) + 1


@lru_cache(maxsize=8)
def _schedule(plan: Plan, nodes: int) -> SendSchedule:
    return schedule(plan, nodes)
