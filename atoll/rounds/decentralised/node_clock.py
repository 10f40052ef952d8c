"""Virtual time without a server: every node goes on as soon as its own neighbours let it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from atoll import tree
from atoll.clock import COUNTED, Clock, DeviceProfile, Timeline, transfer_seconds
from atoll.core import Context, Model, Round
from atoll.rounds.clocked import NAME, Clocked, refuse_waiting
from atoll.rounds.decentralised.topology import Floats, Topology
from atoll.tree import Tree

if TYPE_CHECKING:
    from atoll.rounds.decentralised.decentralised import Decentralised


@dataclass(frozen=True, eq=False)
class NodeClocked(Clocked):
    """A node begins its next round when it has trained and has all that its neighbours sent it in this one.

    t_i <- max(d_i, max over edges j -> i of (d_j + seconds of the message)), where d is t plus the seconds of a node's
    own training. There is no common beginning of a round: a slow node holds up its neighbours first, theirs one round
    later. A message takes the narrower of both ends, each of which its node shares out among its messages of the
    round; latencies add up.
    """

    @classmethod
    def around(cls, inner: Round, clock: Clock, steps: Callable[[Tensor], Tensor]) -> NodeClocked:
        refuse_waiting(clock, "gossip")
        return cls(inner, clock, steps)

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        state = super().init(ctx, model, key)
        now = torch.zeros(ctx.population, dtype=torch.float64)
        return {**state, NAME: {**state[NAME], "now": now}}

    def times(self, ctx: Context, state: Tree, key: Tensor) -> tuple[Timeline, Floats]:
        """And when each node can begin its next round."""
        inner = cast("Decentralised", self.inner)
        ids, nodes = ctx.sample()[0].numpy(), ctx.population
        topology = inner.matrix(nodes, ctx.number, key).topology
        message = inner.bytes_per_message(ctx, tree.without(state, (NAME,)))
        begun = state[NAME]["now"].cpu().numpy()
        pace, compressing = (float(state[NAME][name]) for name in ("seconds_per_step", "seconds_to_compress"))
        device = self.clock.devices.profile(np.arange(nodes))
        steps = np.zeros(nodes, np.int64)
        steps[ids] = self.steps(ctx.sample()[0]).numpy()
        compressed = np.where(steps > 0, compressing * device.slowness, 0.0)
        done = begun + steps * pace * device.slowness + compressed
        arrivals = done[topology.source] + edge_seconds(topology, message, device, self.clock.slow_start)
        now, told = done.copy(), done.copy()
        np.maximum.at(now, topology.target, arrivals)
        np.maximum.at(told, topology.source, arrivals)
        each = message * topology.edges / nodes
        start = float(begun[ids].min(initial=np.inf)) if len(ids) else float(begun.max(initial=0.0))
        status = np.full(len(ids), COUNTED, np.int8)
        columns = (steps[ids], begun[ids], done[ids], told[ids], status)
        timeline = Timeline(start, float(now.max()), ids, *columns, False, each, each, pace)
        if compressing:
            timeline = replace(timeline, seconds_to_compress=compressing, compressed=compressed[ids])
        return timeline, now


def edge_seconds(topology: Topology, message: float, device: DeviceProfile, slow_start: bool) -> Floats:
    """(E,) seconds of a message on every edge, both ends taken into account."""
    source, target = topology.source, topology.target
    up = device.up[source] / np.maximum(1, topology.out_degree)[source]
    down = device.down[target] / np.maximum(1, topology.in_degree)[target]
    latency = device.latency[source] + device.latency[target]
    loss = 1 - (1 - device.loss[source]) * (1 - device.loss[target])
    return transfer_seconds(message, np.minimum(up, down), latency, loss, slow_start)
