"""Compressed gossip with error feedback: nodes send differences to public copies of their models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from atoll import rng, tree
from atoll.core import Chain, Context, Model, Spec, Total, Transform, Update, transform_name
from atoll.errors import ConfigError, SpecError
from atoll.rounds.decentralised.decentralised import MixResult, NodeStep, OnGraph
from atoll.rounds.decentralised.mixing_matrix import MixingMatrix
from atoll.rounds.decentralised.mixing_weights import Promise
from atoll.transforms import TopK
from atoll.tree import Tree
from atoll.wire import EMPTY_BYTES, Layout, lengths, wire_bytes

NAME = "choco"
_MOST_GAMMA, _LEAST_GAMMA = 0.4, 1e-3  # where none is given
_FACTOR = 4  # bytes of the multiple that is taken


class MessageCodec(NamedTuple):
    """A compressor for models like these, and how its messages travel."""

    chain: Chain
    state: Tree
    own: Tree
    layout: Layout
    kept: float  # the share of a difference, by energy, that one message brings


@dataclass(frozen=True)
class Choco(OnGraph):
    """Compressed gossip: CHOCO-SGD (Koloskova et al., 2019).

    q_i = Q(x_i + delta_i - c_i), c_i <- c_i + q_i, x_i <- x_i + delta_i + gamma sum_j W_ij (c_j - c_i). Only q travels:
    everyone keeps copies c of its neighbours. What Q loses is in the next difference, so nothing is lost for good. Of
    what Q makes, the multiple that comes nearest is taken, so that a coarse Q brings c nearer, too: a number more in
    every message. All start from one model, which is the first copy; without loss and with gamma = 1 it is gossip.

    With `gamma` left out it is the share of a difference that Q keeps (the paper's delta, of normal numbers), 0.4 at
    most. Theory asks for much less: gap^2 delta / (16 gap + gap^2 + 4 b^2 + 2 gap b^2 - 8 gap delta), b = |I - W|.
    """

    title: ClassVar[str] = "choco"
    promise: ClassVar[Promise] = "symmetric"
    takes_changes: ClassVar[bool] = False

    compressor: Transform = TopK(share=0.1)
    gamma: Annotated[float, Field(gt=0, le=1)] | None = None

    def __post_init__(self) -> None:
        if not _undone_by_neighbours(self.compressor):
            raise ConfigError(
                f"round.compressor: {transform_name(self.compressor)} is no compressor that a neighbour could undo by "
                "itself, without a server. Use top_k, rand_k, qsgd, half, or ternary with both_ways = false."
            )

    def start(self, models: Model) -> Tree:
        return {NAME: {"copy": tree.map(torch.clone, models["params"])}}

    def mixed_by(self, matrix: MixingMatrix) -> MixingMatrix:
        return matrix.damped(self.gamma or _MOST_GAMMA)

    def mix(self, ctx: Context, stepped: NodeStep, matrix: MixingMatrix, key: Tensor) -> MixResult:
        state, x = stepped.after, stepped.after["server"]["params"]
        decoded, message = self._sent(tree.sub(x, state[NAME]["copy"]), rng.fold_name(key, NAME))
        copy = tree.add(state[NAME]["copy"], decoded)
        pulled = tree.sub(matrix.mix(copy), copy)
        buffers = matrix.mix(state["server"]["buffers"])
        gamma = self.gamma or min(_MOST_GAMMA, _codec(self.compressor, _shapes(x)).kept)
        server = {**state["server"], "params": tree.add_scaled(x, pulled, gamma), "buffers": buffers}
        return MixResult({**state, "server": server, NAME: {"copy": copy}}, message + _whole(buffers))

    def bytes_per_message(self, ctx: Context, state: Tree) -> int:
        codec = _codec(self.compressor, _shapes(state["server"]["params"]))
        return codec.layout.most_bytes + _FACTOR + _whole(state["server"]["buffers"])

    def _sent(self, difference: Tree, key: Tensor) -> tuple[Tree, int | Tensor]:
        """What arrives of every node's difference, and the bytes of each message."""
        codec = _codec(self.compressor, _shapes(difference))
        device, nodes = tree.device(difference), len(tree.leaves(difference)[0])
        state, own = tree.to(codec.state, device), tree.to(codec.own, device)

        def encoded(row: Tree, row_key: Tensor) -> tuple[Tree, Tree]:
            update, _ = codec.chain.client(Update(row, torch.ones((), device=device)), state, own, row_key)
            return _nearest(update.value, row), update.message

        keys = rng.fold_each(key, torch.arange(nodes)).to(device)
        decoded, messages = torch.func.vmap(encoded)(difference, keys)
        return decoded, (codec.layout.fixed_bytes or lengths(codec.layout, messages)) + _FACTOR


@lru_cache(maxsize=8)
def _codec(compressor: Transform, shapes: tuple[tuple[str, torch.Size], ...]) -> MessageCodec:
    like = _zeros(shapes)
    chain, _ = Chain((compressor,)).bind(Spec())
    state, own = chain.init(like)
    return MessageCodec(chain, state, own, chain.upload(like, state, own), _kept(chain, state, own, like))


def _kept(chain: Chain, state: Tree, own: Tree, like: Tree) -> float:
    """Of the energy of normal numbers, what a message brings: the delta of a compressor, as these tensors have it."""
    key = rng.key(NAME, "kept")
    drawn = {path: rng.normal(rng.fold_name(key, path), tuple(x.shape)) for path, x in tree.paths(like)}
    normal = _unflattened(drawn)
    update, _ = chain.client(Update(normal, torch.ones(())), state, own, key)
    off = tree.sub(_nearest(update.value, normal), normal)
    return max(_LEAST_GAMMA, 1.0 - float(tree.dot(off, off) / tree.dot(normal, normal)))


def _undone_by_neighbours(transform: Transform) -> bool:
    """Does it need nothing but its own message?"""
    try:
        bound, _ = transform.bind(Spec())
    except SpecError:  # it needs something before it
        return False
    return type(bound).layout is not Transform.layout and not bound.reshapes and not _changes_sums(bound)


def _changes_sums(transform: Transform) -> bool:
    """Does it do something on the way back? Some have the method, and with a setting of theirs it does nothing."""
    if not transform.has_server_side():
        return False
    like = {"delta": torch.linspace(-1.0, 1.0, 64)}
    one = torch.ones(())
    total, _ = transform.server(Total(like, one, one, invited=1), transform.init(like)[0], rng.key(NAME))
    return not torch.equal(total.value["delta"], like["delta"])


def _shapes(rows: Tree) -> tuple[tuple[str, torch.Size], ...]:
    return tuple((path, x.shape[1:]) for path, x in tree.paths(rows))


def _zeros(shapes: tuple[tuple[str, torch.Size], ...]) -> Tree:
    return _unflattened({path: torch.zeros(shape) for path, shape in shapes})


def _unflattened(leaves: dict[str, Tensor]) -> Tree:
    whole: Tree = {}
    for path, x in leaves.items():
        *outer, last = path.split("/")
        inside = whole
        for name in outer:
            inside = inside.setdefault(name, {})
        inside[last] = x
    return whole


def _nearest(decoded: Tree, step: Tree) -> Tree:
    """The multiple of what is decoded that comes nearest to what was encoded."""
    length = tree.dot(decoded, decoded)
    factor = torch.where(length > 0, tree.dot(decoded, step) / length.clamp(min=1e-300), 0.0)
    return tree.map(lambda x: (x * factor).to(x.dtype), decoded)  # type: ignore[no-any-return]


def _whole(buffers: Tree) -> int:
    """Statistics of BatchNorm travel as they are; nothing does where there are none."""
    return wire_bytes(tree.rows(buffers, 0)) - EMPTY_BYTES if tree.leaves(buffers) else 0
