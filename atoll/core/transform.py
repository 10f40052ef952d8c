"""Layers around the sum, checked when they are put together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeGuard

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core.norms import Norm, factored_norm
from atoll.core.types import Total, Update
from atoll.errors import SpecError
from atoll.tree import Tree
from atoll.wire import Layout

_ROUNDING = 1 + 1e-5  # of a clip in float32, and of the norm that looks after it


@dataclass(frozen=True)
class Spec:
    """What is certain about an update at one point of the chain, apart from noise on it.

    Sensitivities come from here and from nowhere else: one client can move the sum by `l2`, and by `l1` in all.
    """

    l2: float | None = None  # no update is longer than this
    l1: float | None = None  # nor are its entries larger than this, added up without their signs
    equal_weights: bool = False  # every client counts the same
    additive: bool = True  # the server needs only the weighted sum
    domain: Literal["real", "integer", "modular", "sketch"] = "real"
    bits: float = 32.0  # sent per number, on average
    step: float | None = None  # what 1 stands for, where numbers are whole
    unbiased: bool = True  # is it right on average, whatever was rounded or left out?
    noise: float | None = None  # standard deviation of the noise in the sum, once a mechanism has measured its own
    randomised: float | None = None  # the bound before every client's own noise: it is private, whatever follows
    linf: float | None = None  # no number of it is larger than this, its client's own noise in it
    unbounded_because: str = ""  # why a bound that held before does not hold any more
    cohort: int | None = None  # clients in every sum, where that is fixed
    expected: float | None = None  # clients in a sum, on average, where that is fixed
    size: int | None = None  # numbers in an update, where that is known
    rounds: int | None = None  # of the run, where that is known
    min_separation: int = 1  # rounds from one turn of a client to its next, at least, always in the same phase


@dataclass(frozen=True)
class Simulated:
    """The larger system whose noise a run only imitates: simulation only."""

    event: Any  # of one of its rounds
    cohort: int | None = None  # clients in its sums; None for a local mechanism, whoever else takes part
    min_separation: int = 1  # rounds from one turn of a client there to its next


@dataclass(frozen=True)
class Limit:
    """What no client's part of the sum may be longer than, or a mechanism does not hold."""

    norm: Norm
    bound: float

    def kept(self, update: Update, by: Tree) -> Tensor:
        """Does this update keep it, every tensor times its number of `by`? One that is no number is not judged."""
        length = factored_norm(update.value, by, self.norm) * update.weight.abs()
        return ~(length > self.bound * _ROUNDING)


class Transform:
    """One transform: `client` on the way in, `server` on the way out. The identity, unless a hook says otherwise."""

    allowed_after_noise: ClassVar[bool] = False  # does it leave the sum alone that noise before it was measured for?
    keyed: ClassVar[bool] = True  # does the client's side draw? A key of its own takes a hundred operations to make
    keyed_server: ClassVar[bool] = (
        True  # does the server's side draw? Its key is made in Python, 20 microseconds a round
    )
    named: ClassVar[str] = ""  # what a file calls it, where that is not the name of its class
    reshapes: ClassVar[bool] = False  # has what it hands on other shapes, which its server's side gives back?
    silences: ClassVar[bool] = False  # may a client of weight 0 keep its update to itself, and send an empty message?
    keeps_packing: ClassVar[bool] = False  # is what compressors packed before it still as short? That of clips is

    # Is what its client's side does to an update of one number other than 0 independent of how many zeros are beside it
    # in its tensor, and do the zeros stay? Then canaries need no dense updates.
    keeps_zeros: ClassVar[bool] = False

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        """Check what comes in, fix what depends on it, and say what goes out."""
        return self, spec

    def joined(self, following: Transform, spec: Spec) -> tuple[Transform, Spec] | None:
        """One transform in place of this one and the next, both bound, where they are one message on the wire.

        `spec` is what the next one leaves certain if it stands alone; with it comes what both leave.
        """
        return None

    def init(self, like: Tree) -> tuple[Tree, Tree]:
        """The server's state and one client's state, for updates like this one."""
        return {}, {}

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        """One client's update on its way to the server, and the client's new state."""
        return update, own

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        """The total on its way to the algorithm, and the server's new state."""
        return total, state

    def layout(self, like: Tree) -> Layout | None:
        """How what it hands on travels, for updates like this one; None: number by number, or as it was packed before
        where its client's side does nothing, or `keeps_packing`.

        Where the number of bytes depends on the data, `client` puts what travels into `Update.message`.
        """
        return None

    def client_view(self, state: Tree) -> Tree:
        """The part of the server's state that clients look at: not the noise of the past."""
        return state if _has(self, "client") else {}

    def has_server_side(self) -> bool:
        """Does it do something on the way back?"""
        return _has(self, "server")

    def releases(self, invited: int) -> bool:
        """Is something released even where none of the clients that were invited contributed?

        Noise is: that nobody came is private, too.
        """
        return False

    def diagnostics(self, state: Tree) -> Tree:
        """What the record may say of a round, from the server's state after it."""
        return {}

    def event(self) -> Any | None:
        """What a privacy accountant must know of one round of this run; None for nothing."""
        return None

    def limit(self) -> Limit | None:
        """What a mechanism relies on where it stands: every update of a run is held against it. None: on nothing."""
        return None

    def simulates(self) -> Simulated | None:
        """The larger system that this only simulates; None where the run is the real thing."""
        return None

    def mechanisms(self) -> list[Transform]:
        """The transforms in it that an accountant must know of. One around others gives theirs."""
        return [] if self.event() is None else [self]


class Scaling(Transform, ABC):
    """A transform whose client's side multiplies every tensor by a number, and may add parts to the update."""

    keyed: ClassVar[bool] = False
    keeps_packing: ClassVar[bool] = True

    @abstractmethod
    def scaled(self, update: Update, state: Tree) -> tuple[Update, Tree]:
        """The update with its new parts, and what each tensor of it is to be multiplied by."""

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        update, by = self.scaled(update, state)
        return update.scaled(by), own


class Calibrated(Transform):
    """A mechanism whose noise is a multiple of its sensitivity; or, in place of that, the least that keeps a budget."""

    calibrated_options: ClassVar[tuple[str, ...]] = ("epsilon", "delta")  # set-up turns them into a noise multiplier

    noise_multiplier: float  # NaN where a budget is given
    epsilon: float | None
    delta: float | None


@dataclass(frozen=True)
class Chain(Transform):
    """Transforms as an onion: client sides in order, server sides in reverse."""

    transforms: Sequence[Transform] = ()

    def bind(self, spec: Spec) -> tuple[Chain, Spec]:
        bound: list[Transform] = []
        last = 0  # the transform that stands for its neighbours, too; they keep their places, and do nothing
        for i, transform in enumerate(self.transforms):
            _check_after_noise(transform, spec)
            transform, spec = transform.bind(spec)
            both = bound[last].joined(transform, spec) if bound else None
            if both is None:
                last = i
                bound.append(transform)
            else:
                bound[last], spec = both
                bound.append(Transform())
        return Chain(tuple(bound)), spec

    def init(self, like: Tree) -> tuple[Tree, Tree]:
        states, own = {}, {}
        for i, transform in enumerate(self.transforms):
            states[str(i)], own[str(i)] = transform.init(like)
            like = _passed_on(transform, like, states[str(i)], own[str(i)])
        return states, own

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        update, by, kept, _ = self.client_factored(update, state, own, key)
        return update.scaled(by), kept

    def client_factored(
        self, update: Update, state: Tree, own: Tree, key: Tensor
    ) -> tuple[Update, Tree, Tree, Tensor | None]:
        """`client`, but the numbers that the last transform multiplies by come apart: a sum can do that in passing.

        Last, whether the update kept the limits of all mechanisms where they stand; None where there are none.
        """
        kept, by, within = dict(own), dict[str, Any](), None
        active = [i for i, transform in enumerate(self.transforms) if _has(transform, "client")]
        for i, transform in enumerate(self.transforms):
            if (limit := transform.limit()) is not None:
                within = limit.kept(update, by) if within is None else within & limit.kept(update, by)
            if i not in active:
                continue
            if i == active[-1] and _only_scales(transform):
                update, by = transform.scaled(update, state[str(i)])
                continue
            layer_key = rng.fold(key, i) if transform.keyed else key
            update, kept[str(i)] = transform.client(update, state[str(i)], own[str(i)], layer_key)
        return update, by, kept, within

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        kept = dict(state)
        for i, transform in reversed(list(enumerate(self.transforms))):
            if _has(transform, "server"):
                layer_key = rng.fold_host(key, i) if transform.keyed_server else key
                total, kept[str(i)] = transform.server(total, state[str(i)], layer_key)
        return total, kept

    def server_keys(self, keys: Tensor) -> list[Tensor]:
        """What `server` hands to each transform that draws on the server, for these keys (R, 2) of the chain."""
        drawing = [i for i, x in enumerate(self.transforms) if _has(x, "server") and x.keyed_server]
        return [rng.host.fold_all(keys, i) for i in drawing]

    def draws(self) -> bool:
        """Does any transform draw on the client's side?"""
        return any(transform.keyed and _has(transform, "client") for transform in self.transforms)

    def client_view(self, state: Tree) -> Tree:
        return {k: v if _has(self.transforms[int(k)], "client") else {} for k, v in state.items()}

    def releases(self, invited: int) -> bool:
        return any(transform.releases(invited) for transform in self.transforms)

    def diagnostics(self, state: Tree) -> Tree:
        return {
            k: v for i, transform in enumerate(self.transforms) for k, v in transform.diagnostics(state[str(i)]).items()
        }

    def has_server_side(self) -> bool:
        return any(transform.has_server_side() for transform in self.transforms)

    def mechanisms(self) -> list[Transform]:
        return [mechanism for transform in self.transforms for mechanism in transform.mechanisms()]

    def events(self) -> list[Any]:
        """What every mechanism of the chain did in a round, in order."""
        return [mechanism.event() for mechanism in self.mechanisms()]

    def simulated_events(self) -> list[Any]:
        """The same for the larger system that the chain stands for; empty where it is the real thing."""
        pairs = [(mechanism.simulates(), mechanism.event()) for mechanism in self.mechanisms()]
        imitates = any(simulated is not None for simulated, _ in pairs)
        return [simulated.event if simulated else event for simulated, event in pairs] if imitates else []

    def zeros(self, like: Tree, state: Tree, own: Tree) -> Tree:
        """Zeros in the shape of what arrives at the server."""
        return self._stages(like, state, own)[-1]

    def upload(self, like: Tree, state: Tree, own: Tree) -> Layout:
        """How an update like this one travels: as the last compressor packed it, unless it is changed again."""
        stages, packed = self._stages(like, state, own), None
        for transform, given, handed_on in zip(self.transforms, stages, stages[1:], strict=False):
            packed = transform.layout(given) or (packed if _keeps_packing(transform, given, handed_on) else None)
        weight = torch.ones((), device=tree.device(like))
        return packed or Layout.of({"weight": weight, "value": stages[-1]})

    def silent(self) -> bool:
        """May clients of weight 0 send nothing?"""
        return any(transform.silences for transform in self.transforms)

    def _stages(self, like: Tree, state: Tree, own: Tree) -> list[Tree]:
        """Zeros in the shape of what each transform is given, and of what leaves the last."""
        stages = [like]
        for i, transform in enumerate(self.transforms):
            stages.append(_passed_on(transform, stages[-1], state[str(i)], own[str(i)]))
        return stages


def transform_name(transform: Transform) -> str:
    """What a file calls it.

    >>> transform_name(Chain())
    'chain'
    """
    name = type(transform).__name__
    return transform.named or "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def _has(transform: Transform, hook: str) -> bool:
    """Has the transform a hook of its own? The plain one gives back what it gets."""
    return getattr(type(transform), hook) is not getattr(Transform, hook)


def _keeps_packing(transform: Transform, given: Tree, handed_on: Tree) -> bool:
    """Does it leave places, levels and shapes alone, and no more than multiply by a number?"""
    same_parts = [(k, x.shape) for k, x in tree.paths(given)] == [(k, x.shape) for k, x in tree.paths(handed_on)]
    return not _has(transform, "client") or (transform.keeps_packing and same_parts)


def _only_scales(transform: Transform) -> TypeGuard[Scaling]:
    """Is its client's side the product of `scaled`, and not one of its own?"""
    return isinstance(transform, Scaling) and type(transform).client is Scaling.client


def _check_after_noise(transform: Transform, spec: Spec) -> None:
    """Noise is measured for the sum as it is where the noise stands; whoever changes that sum must stand before it."""
    changes = _has(transform, "client") or _has(transform, "server")
    if spec.noise is not None and changes and not transform.allowed_after_noise:
        raise SpecError(
            f"{transform_name(transform)} changes what the noise before it was measured for: put it before the noise."
        )


def _passed_on(transform: Transform, like: Tree, state: Tree, own: Tree) -> Tree:
    """Zeros in the shape of what this transform hands to the next one: it may add a part of its own."""
    device = tree.device(like)
    update = Update(like, torch.ones((), device=device))
    return tree.zeros_like(transform.client(update, state, own, rng.key("like").to(device))[0].value)
