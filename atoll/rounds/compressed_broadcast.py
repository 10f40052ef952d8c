"""What the server sends, compressed: the difference to what clients have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from atoll import rng, tree
from atoll.clock import Floats
from atoll.core import (
    Chain,
    Context,
    Model,
    Outcome,
    Play,
    Round,
    Spec,
    Traffic,
    Train,
    Transform,
    Update,
    transform_name,
)
from atoll.errors import ConfigError
from atoll.rounds.around import RoundAround
from atoll.rounds.foretold_bytes import foretold_bytes
from atoll.tree import Tree
from atoll.wire import Layout, lengths, wire_bytes

NAME = "broadcast"


@dataclass(frozen=True, eq=False)
class CompressedBroadcast(RoundAround):
    """A round around another: clients train from a reference that follows the server's model by compressed steps.

    reference += a decoded(encoded(model - reference)), so what is lost in one round is sent in a later one. The server
    knows both and sends the `a` that comes nearest (in the place of a client's weight), so that the reference never
    moves away from the model, however coarse the codec. A client that was there in the round before has the last
    reference and is sent the difference; any other one is sent the whole.
    """

    codec: Chain  # of transforms that draw, and keep nothing

    @classmethod
    def around(cls, inner: Round, transforms: Sequence[Transform]) -> CompressedBroadcast:
        """A ConfigError where there is no server, or where something is no codec."""
        if not inner.traits().has_server:
            raise ConfigError(
                "broadcast: compresses what a server sends to all, and here is none that sends all the same. "
                "Leave it out."
            )
        if (why := inner.traits().refuses.get("broadcast")) is not None:
            raise ConfigError(f"broadcast: {why}")
        if inner.traits().sends_rows:
            raise ConfigError(
                "broadcast: compresses one message for all, and here clients of different kinds are sent different "
                "ones. Leave it out."
            )
        codec, _ = Chain(tuple(transforms)).bind(Spec())
        for i, transform in enumerate(codec.transforms):
            if type(transform) is not Transform and type(transform).layout is Transform.layout:
                raise ConfigError(
                    f"broadcast.{i}: {transform_name(transform)} does not make a message smaller. Use top_k, qsgd, "
                    "half, or another compressor (atoll list transforms)."
                )
        return cls(inner, codec)

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        state = self.inner.init(ctx, model, key)
        sent, _ = self.inner.broadcast(ctx, state, torch.zeros(0, dtype=torch.int64))
        return {**state, NAME: {"reference": sent, "seen": torch.full((ctx.population,), -2)}}

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        before, inside = state[NAME], tree.without(state, (NAME,))
        play = self.inner.run(ctx, inside, key)
        request, costs = next(play), None
        while True:
            if isinstance(request, Train) and costs is None:
                reference, costs = self._next(request.sent, before["reference"], rng.fold_name(key, NAME))
                request = replace(request, sent=reference)
            answer = yield request
            try:
                request = play.send(answer)
            except StopIteration as end:
                new, outcome = end.value
                break
        if costs is None:
            return {**new, NAME: before}, outcome
        down = torch.where(self._known(ctx, before["seen"], outcome.ids), *costs)
        seen = _marked(before["seen"], outcome.ids, ctx.number)
        told = replace(outcome, traffic=Traffic(outcome.traffic.up, int(down.sum())), downloads=down)
        return {**new, NAME: {"reference": reference, "seen": seen}}, told

    def broadcast(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[Tree, Tree]:
        _, seen = self.inner.broadcast(ctx, tree.without(state, (NAME,)), ids)
        return state[NAME]["reference"], seen

    def message_bytes(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[float | Floats, float | Floats]:
        """Down: a difference at most for who was there in the round before, the whole for others."""
        _, up = self.inner.message_bytes(ctx, tree.without(state, (NAME,)), ids)
        difference, whole = self._layout(state).most_bytes, wire_bytes(state[NAME]["reference"])
        known = self._known(ctx, state[NAME]["seen"], ids).numpy()
        return np.where(known, float(difference), float(whole)), up

    def total_bytes(
        self, ctx: Context, state: Tree, first: Outcome, pools: Callable[[int], Tensor], rounds: int
    ) -> dict[str, int]:
        total = self.inner.total_bytes(ctx, tree.without(state, (NAME,)), first, pools, rounds)
        return {**total, "down": foretold_bytes(self, ctx, state, pools, rounds)["down"]}

    def lengths_vary(self, ctx: Context, state: Tree) -> bool:
        varies = self._layout(state).fixed_bytes is None
        return varies or self.inner.lengths_vary(ctx, tree.without(state, (NAME,)))

    def after(self, ctx: Context, state: Tree, ids: Tensor) -> Tree:
        state = {**self.inner.after(ctx, tree.without(state, (NAME,)), ids), NAME: state[NAME]}
        return {**state, NAME: {**state[NAME], "seen": _marked(state[NAME]["seen"], ids, ctx.number)}}

    def model(self, state: Tree) -> Model:
        return self.inner.model(tree.without(state, (NAME,)))

    def beside(self, state: Tree) -> dict[str, Model]:
        return self.inner.beside(tree.without(state, (NAME,)))

    def _layout(self, state: Tree) -> Layout:
        """How a difference travels."""
        reference = state[NAME]["reference"]
        return self.codec.upload(reference, *self.codec.init(reference))

    def _known(self, ctx: Context, seen: Tensor, ids: Tensor) -> Tensor:
        """(C,) on the host: whose report of the round before the server has, and so knows what that client holds."""
        return (seen[ids.to(seen.device)] == ctx.number - 1).cpu()

    def _next(self, sent: Tree, reference: Tree, key: Tensor) -> tuple[Tree, tuple[int, int]]:
        """The next reference, and the bytes of the difference and of the whole."""
        step = tree.sub(sent, reference)
        state, own = self.codec.init(step)
        weight = torch.ones((), device=tree.device(sent))
        with torch.no_grad():
            update, _ = self.codec.client(Update(step, weight), state, own, key.to(tree.device(sent)))
        layout = self.codec.upload(step, state, own)
        new = tree.map(lambda old, x: old + tree.cast_like(x, old), reference, _nearest(update.value, step))
        return new, (_bytes(layout, update), wire_bytes(sent))


def _marked(seen: Tensor, ids: Tensor, number: int) -> Tensor:
    return seen.index_fill(0, ids.to(seen.device), number)


def _nearest(decoded: Tree, step: Tree) -> Tree:
    """The multiple of what is decoded that comes nearest to what was encoded."""
    length = tree.dot(decoded, decoded)
    return tree.scale(decoded, torch.where(length > 0, tree.dot(decoded, step) / length.clamp(min=1e-300), 0.0))


def _bytes(layout: Layout, update: Update) -> int:
    if layout.fixed_bytes is not None:
        return layout.fixed_bytes
    return int(lengths(layout, tree.map(lambda x: x[None], update.message))[0])
