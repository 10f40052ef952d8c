"""Defences that look at every coordinate on its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from atoll.core import Stack
from atoll.reducers.coordinates import mean_around_median, mean_of_ranks, median, reduced
from atoll.reducers.defence import Byzantine, Defence, Sized
from atoll.tree import Tree


@dataclass(frozen=True)
class Median(Defence):
    """The middle value of every coordinate; the mean of the two middle ones for an even number (Yin et al., 2018)."""

    assumes: ClassVar[str] = "fewer than half of the clients lie, and honest ones are alike; n/2 liars break it"

    def aggregate(self, stack: Stack, state: Tree, key: Tensor) -> tuple[Tree, Tree, Tree]:
        return reduced(stack.updates.value, median), state, {}

    def tolerates(self, clients: int) -> int:
        return (clients - 1) // 2


@dataclass(frozen=True)
class TrimmedMean(Defence):
    """The mean of every coordinate without the `share` lowest and the `share` highest values (Yin et al., 2018)."""

    assumes: ClassVar[str] = "at most the trimmed share of the clients lies; one more than int(share n) breaks it"

    share: Annotated[float, Field(ge=0, lt=0.5)] = 0.1

    def aggregate(self, stack: Stack, state: Tree, key: Tensor) -> tuple[Tree, Tree, Tree]:
        first = self.tolerates(len(stack))
        return reduced(stack.updates.value, lambda x: mean_of_ranks(x, first, len(x) - 1 - first)), state, {}

    def tolerates(self, clients: int) -> int:
        return int(self.share * clients)

    def is_plain_mean(self, clients: int) -> bool:
        return self.tolerates(clients) == 0


@dataclass(frozen=True)
class Meamed(Sized, Defence):
    """Mean around the median: of every coordinate the mean of the n - f values next to its median (Xie et al., 2018).

    Generalized Byzantine-tolerant SGD, arXiv:1802.10116. f = `byzantine`.
    """

    assumes: ClassVar[str] = "at most `byzantine` of n clients lie, 2 byzantine < n; one more breaks it"
    needs: ClassVar[str] = "Meamed needs 2 byzantine < n"

    byzantine: Byzantine = 1

    def aggregate(self, stack: Stack, state: Tree, key: Tensor) -> tuple[Tree, Tree, Tree]:
        count = len(stack) - self.allowed(len(stack))
        return reduced(stack.updates.value, lambda x: mean_around_median(x, count)), state, {}

    def is_plain_mean(self, clients: int) -> bool:
        return self.allowed(clients) == 0
