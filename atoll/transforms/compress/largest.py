"""Sending the largest entries of each tensor."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from atoll import rng, tree
from atoll.transforms.compress import selection
from atoll.transforms.compress.compressor import Packed, Split
from atoll.transforms.compress.leafwise import Leafwise
from atoll.tree import Tree

ShareSent = Annotated[float, Field(gt=0, le=1)]
Feedback = Annotated[float, Field(ge=0, le=1)]
_Split = Callable[[list[Tensor], list[Tensor], float, list[int], Tensor, bool], list[selection.Parts]]


def entries(share: float, numbers: int) -> int:
    """How many entries of so many numbers are sent: one at least.

    >>> entries(0.01, 250), entries(0.01, 3)
    (3, 1)
    """
    return max(1, math.ceil(share * numbers))


def largest(x: Tensor, k: int) -> Tensor:
    """The places of the k largest entries by size, in increasing order."""
    if selection.selects(x):
        by_kernel: Tensor = selection.largest_places(x, k)
        return by_kernel
    return x.abs().topk(k).indices.sort().values


def placed(values: Tensor, places: Tensor, like: Tensor) -> Tensor:
    """Zeros, but for these values at these places."""
    return values.new_zeros(like.numel()).scatter(0, places, values).reshape(like.shape)


class LargestEntries(Leafwise):
    """One that sends the largest `share` of each tensor's entries: themselves, or their signs and mean size.

    On a GPU what arrives and what is held back are written while the largest are taken out.
    """

    signs: ClassVar[bool] = False

    share: float

    @abstractmethod
    def message_leaf(self, values: Tensor, places: Tensor, mean: Tensor | None) -> tuple[Tree, Tree]:
        """The numbers and the codes of these entries; `mean` of their sizes, where signs are sent."""

    def pack_leaf(self, x: Tensor, key: Tensor) -> tuple[Tree, Tree]:
        flat = x.flatten()
        places = largest(flat, entries(self.share, len(flat)))
        values = flat.gather(0, places)
        return self.message_leaf(values, places, values.abs().mean() if self.signs else None)

    def split(self, value: Tree, memory: Tree, part: float, arrives: Tensor, own: Tree) -> Split | None:
        if not self._by_kernels(value):
            return None
        apart = self._apart(value, memory, part, arrives, selection.split_one)
        return Split(self._message(apart), *_halves(apart))

    def sent_and_held(self, value: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """The server's: what it sends of value + memory, and what it holds back. Nobody asks for a message."""
        if self._by_kernels(value):
            one = torch.ones((), device=tree.device(value))
            return _halves(self._apart(value, memory, 1.0, one, selection.split))
        full, key = tree.add(value, memory), rng.key("unused")
        sent = self.unpack(self.pack(full, {}, key)[0], full, key)
        return sent, tree.sub(full, sent)

    def _by_kernels(self, value: Tree) -> bool:
        return all(selection.selects(x) for x in tree.leaves(value) if self.takes(x))

    def _apart(self, value: Tree, memory: Tree, part: float, arrives: Tensor, by: _Split) -> Tree:
        """The parts of every tensor; all that are packed go together."""
        pairs = [pair for pair in tree.leaves(tree.map(_pair, value, memory)) if self.takes(pair[0])]
        flat = [x.flatten() for x, _ in pairs], [m.flatten() for _, m in pairs]
        packed = iter(by(*flat, part, [entries(self.share, x.numel()) for x, _ in pairs], arrives, self.signs))

        def parts(x: Tensor, m: Tensor) -> Any:
            if self.takes(x):
                places, mean, sent, held = next(packed)
                return selection.Parts(places, mean, sent.reshape(x.shape), held.reshape(x.shape))
            full = x + (m * part).to(x.dtype)
            return selection.Parts(None, None, full, (full - full * arrives).to(x.dtype))

        return tree.map(parts, value, memory)  # type: ignore[no-any-return]

    def _message(self, apart: Any) -> Packed:
        if isinstance(apart, dict):
            parts = {name: self._message(part) for name, part in apart.items()}
            codes = {name: part.codes for name, part in parts.items() if part.codes}
            return Packed({name: part.numbers for name, part in parts.items()}, codes)
        if apart.places is None:
            return Packed(apart.sent, {})
        return Packed(*self.message_leaf(apart.sent.flatten().gather(0, apart.places), apart.places, apart.mean))


def _pair(x: Tensor, memory: Tensor) -> Any:
    return x, memory


def _halves(apart: Tree) -> tuple[Tree, Tree]:
    """What is sent and what is held back."""
    return tree.map(lambda part: part.sent, apart), tree.map(lambda part: part.held, apart)
