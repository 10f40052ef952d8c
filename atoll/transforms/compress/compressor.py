"""What a compressor is: it packs an update into less, and unpacks what arrives.

Compressors that follow one another in a file are one message: each packs the real numbers that the one before it left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Spec, Total, Transform, Update, transform_name
from atoll.errors import SpecError
from atoll.transforms.compress.layouts import layout_of
from atoll.transforms.requirements import needs_real
from atoll.tree import Tree
from atoll.wire import Encoding, Layout


class Packed(NamedTuple):
    """One update, as small as a compressor makes it."""

    numbers: Tree  # real ones, which the next compressor may pack further
    codes: Tree  # whole ones: positions, levels, signs


class Split(NamedTuple):
    """An update taken apart."""

    packed: Packed  # the message
    sent: Tree  # what the server makes of it
    held: Tree  # what did not arrive
    kept: Tree = {}  # noqa: RUF012  (never changed) what the client keeps for the next time, as `pack` says


class Compressor(Transform, ABC):
    """Pure functions of one client's update. `Compression` adds the residual, the bytes and its neighbours."""

    keyed: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False  # is what arrives right on average?
    linear: ClassVar[bool] = True  # do errors in its numbers make no larger ones, in proportion, in the update?
    fixed_length: ClassVar[bool] = True  # do its messages take the same bytes, whatever the numbers?
    feedback: float = 0.0  # of what was not sent is added to the next update

    @abstractmethod
    def pack(self, value: Tree, own: Tree, key: Tensor) -> tuple[Packed, Tree]:
        """What is sent of these tensors, and what the client keeps for the next time."""

    @abstractmethod
    def unpack(self, packed: Packed, like: Tree, key: Tensor) -> Tree:
        """What the server makes of it: tensors like these. The key is the one that it was packed with."""

    def arrived(self, value: Tree, own: Tree, key: Tensor) -> tuple[Tree, Tree]:
        """`unpack` of `pack`, and what the client keeps. What needs no message can be quicker."""
        packed, kept = self.pack(value, own, key)
        return self.unpack(packed, value, key), kept

    def split(self, value: Tree, memory: Tree, part: float, arrives: Tensor, own: Tree) -> Split | None:
        """What is sent of x = value + part * memory, and what is held back, x - sent * arrives, in one go.

        None where that is no quicker than `pack` and `unpack`.
        """
        return None

    @abstractmethod
    def encodings(self, like: Tree) -> Tree:
        """How the codes of tensors like these travel: an `Encoding` for each, {} for one that travels as it is."""

    @abstractmethod
    def after(self, spec: Spec) -> Spec:
        """What is certain of an update that was packed and unpacked, without feedback."""

    def own(self, like: Tree) -> Tree:
        """What a client keeps, before its first turn."""
        return {}

    def server_state(self, like: Tree) -> Tree:
        """What the server keeps, before the first round."""
        return {}

    def aggregated(self, total: Total, state: Tree) -> tuple[Total, Tree]:
        """What the server makes of the sum of what arrived, and what it keeps."""
        return total, state

    def too_coarse(self, like: Tree) -> str | None:
        """What to do where errors can be longer than what was packed: feedback would make them grow without end."""
        return None

    def packs(self, like: Tree) -> bool:
        """Is there anything in tensors like these that it makes smaller?"""
        return True

    def coder(self) -> str | None:
        """A lossless coder for the whole message, if this is one."""
        return None

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        needs_real(spec, self.name)
        after = self.after(spec)
        if self.feedback:  # what was held back is added to a later update, so a bound does not hold any more
            reason = f"{self.name} adds what it held back, after clipping" if spec.l2 is not None else ""
            after = replace(after, l2=None, l1=None, unbounded_because=reason or spec.unbounded_because)
        return Compression((self,)), replace(after, unbiased=spec.unbiased and self.unbiased)

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        raise AssertionError("bind it first")

    @property
    def name(self) -> str:
        """What a file calls it."""
        return transform_name(self)


@dataclass(frozen=True)
class Compression(Transform):
    """Pack, one compressor after the other; what arrives is unpacked in reverse.

    Error feedback: what did not arrive is client state, and is added to the client's next update (Seide et al., 2014).
    """

    compressors: tuple[Compressor, ...]

    @property
    def keyed(self) -> bool:  # type: ignore[override]
        """Does any of them draw?"""
        return any(c.keyed for c in self.compressors)

    @property
    def keeps_zeros(self) -> bool:  # type: ignore[override]
        """Do all of them?"""
        return all(c.keeps_zeros for c in self.compressors)

    @property
    def feedback(self) -> float:
        """The share of what was held back that is added to the next update."""
        return max(c.feedback for c in self.compressors)

    def joined(self, following: Transform, spec: Spec) -> tuple[Transform, Spec] | None:
        if following.silences and self.feedback:
            raise SpecError(f"{transform_name(following)} would lose what is not sent: put it before all feedback.")
        if not isinstance(following, Compression):
            return None
        curved = [c.name for c in self.compressors if not c.linear]
        if curved and spec.l2 is not None and any(c.coder() is None for c in following.compressors):
            reason = f"{following.compressors[0].name} rounds what {curved[0]} packed, which can make an update longer"
            spec = replace(spec, l2=None, l1=None, unbounded_because=reason)
        return Compression(self.compressors + following.compressors), spec

    def init(self, like: Tree) -> tuple[Tree, Tree]:
        own: Tree = {self._held: tree.zeros_like(like)} if self.feedback else {}
        stages = list(zip(self.compressors, self.stages(like), strict=True))
        for c, x in stages:
            if self.feedback and (advice := c.too_coarse(x)):
                raise SpecError(f"{c.name}: with feedback its errors would grow from round to round: {advice}.")
        for before, (c, x) in zip(self.compressors, stages[1:], strict=False):
            if not c.packs(x):
                what = f"{before.name} before it leaves no numbers that it could pack"
                raise SpecError(f"{c.name}: {what}: put {c.name} first, or leave one of them out.")
        kept = {str(i): mine for i, (c, x) in enumerate(stages) if (mine := c.own(x))}
        state = {str(i): c.server_state(like) for i, c in enumerate(self.compressors) if _has_server_side(c)}
        return state, own | ({"kept": kept} if kept else {})

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        kept = dict(state)
        for i in reversed(kept):
            total, kept[i] = self.compressors[int(i)].aggregated(total, state[i])
        return total, kept

    def client_view(self, state: Tree) -> Tree:
        return {}

    def has_server_side(self) -> bool:
        return any(map(_has_server_side, self.compressors))

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        arrives = (update.weight > 0).float()  # of a client that counts for nothing all is held back
        sent, held_back, kept, message = self._parts(update.value, own, arrives, key)
        travels = {"weight": update.weight, **message._asdict()} if message else {}
        memory = {self._held: held_back} if self.feedback else {}
        return update._replace(value=sent, message=travels), memory | ({"kept": kept} if kept else {})

    def _parts(self, value: Tree, own: Tree, arrives: Tensor, key: Tensor) -> tuple[Tree, Tree, Tree, Packed | None]:
        """What arrives, what is held back, what the client keeps, and the message where its length varies."""
        if not self.feedback:
            sent, kept, message = self._sent(value, own.get("kept", {}), key)
            return sent, {}, kept, message
        only, part, held = self.compressors[0], self.feedback, own[self._held]
        kept = own.get("kept", {})
        split = only.split(value, held, part, arrives, kept.get("0", {})) if len(self.compressors) == 1 else None
        if split is not None:
            message = None if only.fixed_length else Packed(split.packed.numbers, {"0": split.packed.codes})
            return split.sent, split.held, {"0": split.kept} if split.kept else {}, message
        full = tree.add(value, held if part == 1 else tree.map(lambda x: (x * part).to(x.dtype), held))
        sent, kept, message = self._sent(full, kept, key)
        return sent, tree.map(lambda x, y: less(x, y, arrives), full, sent), kept, message

    def _sent(self, full: Tree, kept: Tree, key: Tensor) -> tuple[Tree, Tree, Packed | None]:
        """What arrives, what the client keeps, and the message, where its length depends on the numbers."""
        fixed = all(c.fixed_length for c in self.compressors)
        if fixed and len(self.compressors) == 1:
            sent, mine = self.compressors[0].arrived(full, kept.get("0", {}), self._key(key, 0))
            return sent, {"0": mine} if mine else {}, None
        message, kept, stages = self.packed(full, kept, key)
        return self.unpacked(message, stages, key), kept, None if fixed else message

    def layout(self, like: Tree) -> Layout:
        if all(c.coder() for c in self.compressors):
            name = self.compressors[0].name
            raise SpecError(f"{name}: codes what compressors before it send, and there is none: put qsgd before it.")
        _, own = self.init(like)
        key = rng.key("like").to(tree.device(like))
        message, _, stages = self.packed(tree.zeros_like(like), own.get("kept", {}), key)
        return self._layout({"weight": torch.ones((), device=tree.device(like)), **message._asdict()}, stages)

    def _layout(self, message: Tree, stages: list[Tree]) -> Layout:
        coder = next((c.coder() for c in self.compressors if c.coder()), None)
        encodings = {f"codes/{path}": encoding for path, encoding in _encodings(self.encodings(stages))}
        return layout_of(message, encodings, coder)

    def packed(self, value: Tree, kept: Tree, key: Tensor) -> tuple[Packed, Tree, list[Tree]]:
        """The message of an update: the numbers that are left at the end, and the codes of every compressor.

        Also what the client keeps, and what each compressor was given.
        """
        codes, new, stages = dict[str, Any](), dict[str, Any](), list[Tree]()
        for i, c in enumerate(self.compressors):
            stages.append(value)
            (value, mine), own = c.pack(value, kept.get(str(i), {}), self._key(key, i))
            codes |= {str(i): mine} if mine else {}
            new |= {str(i): own} if own else {}
        return Packed(value, codes), new, stages

    def unpacked(self, message: Packed, stages: list[Tree], key: Tensor) -> Tree:
        """The update as the server sees it, from the message and tensors like those that each compressor was given."""
        value = message.numbers
        for i, c in reversed(list(enumerate(self.compressors))):
            value = c.unpack(Packed(value, message.codes.get(str(i), {})), stages[i], self._key(key, i))
        return value

    def encodings(self, stages: list[Tree]) -> Tree:
        """How the codes of all of them travel, of tensors like those that each was given."""
        pairs = zip(self.compressors, stages, strict=True)
        return {str(i): codes for i, (c, x) in enumerate(pairs) if (codes := c.encodings(x))}

    def stages(self, like: Tree) -> list[Tree]:
        """Tensors like those that each compressor is given, for updates like this one."""
        stages, key = [like], rng.key("like").to(tree.device(like))
        for c in self.compressors[:-1]:
            stages.append(c.pack(tree.zeros_like(stages[-1]), c.own(stages[-1]), key)[0].numbers)
        return stages

    @property
    def _held(self) -> str:
        """What a client's memory calls it: a `residual` loses nothing, and is held to that by the kit."""
        return "residual" if self.feedback == 1 else "fading_residual"

    def _key(self, key: Tensor, i: int) -> Tensor:
        return rng.fold(key, i) if self.compressors[i].keyed else key


def counted(total: Total) -> Total:
    """The same; of clients that all count for nothing, as if one had sent zeros."""
    return replace(total, weight=torch.where(total.weight > 0, total.weight, 1.0))


def less(x: Tensor, y: Tensor, factor: Tensor) -> Tensor:
    """What is left of x where y was sent and arrived, which factor 1 says, or did not."""
    return torch.addcmul(x, y, factor.to(x.dtype), value=-1) if x.is_floating_point() else (x - y * factor).to(x.dtype)


def _has_server_side(c: Compressor) -> bool:
    return type(c).aggregated is not Compressor.aggregated


def _encodings(codes: Tree, prefix: str = "") -> Iterator[tuple[str, Encoding]]:
    """Those in a tree, by path. One is a dict of its own, without dicts in it."""
    for name, x in codes.items():
        if any(isinstance(part, dict) for part in x.values()):
            yield from _encodings(x, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", x
