"""What the server sends, compressed: the difference to what clients have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Chain, Context, Model, Play, Round, Spec, Traffic, Train, Transform, Update, transform_name
from atoll.errors import ConfigError
from atoll.rounds.around import RoundAround
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
        if not inner.has_server:
            raise ConfigError(
                "broadcast: compresses what a server sends to all, and here is none that sends all the same. "
                "Leave it out."
            )
        if (why := inner.refuses("broadcast")) is not None:
            raise ConfigError(f"broadcast: {why}")
        if inner.sends_rows:
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
        seen = before["seen"]
        known = seen[outcome.ids.to(seen.device)] == ctx.number - 1
        down = int(torch.where(known.cpu(), costs[0], costs[1]).sum())
        seen = seen.index_fill(0, outcome.ids.to(seen.device), ctx.number)
        told = replace(outcome, traffic=Traffic(outcome.traffic.up, down))
        return {**new, NAME: {"reference": reference, "seen": seen}}, told

    def broadcast(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[Tree, Tree]:
        _, seen = self.inner.broadcast(ctx, tree.without(state, (NAME,)), ids)
        return state[NAME]["reference"], seen

    def model(self, state: Tree) -> Model:
        return self.inner.model(tree.without(state, (NAME,)))

    def beside(self, state: Tree) -> dict[str, Model]:
        return self.inner.beside(tree.without(state, (NAME,)))

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


def _nearest(decoded: Tree, step: Tree) -> Tree:
    """The multiple of what is decoded that comes nearest to what was encoded."""
    length = tree.dot(decoded, decoded)
    return tree.scale(decoded, torch.where(length > 0, tree.dot(decoded, step) / length.clamp(min=1e-300), 0.0))


def _bytes(layout: Layout, update: Update) -> int:
    if layout.fixed_bytes is not None:
        return layout.fixed_bytes
    return int(lengths(layout, tree.map(lambda x: x[None], update.message))[0])
