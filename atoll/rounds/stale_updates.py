"""Staleness where the server sees sums alone: every client scales its own update, before it is rounded and masked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from atoll import tree
from atoll.core import Scaling, Spec, Transform, Update
from atoll.reducers import StalenessDiscount
from atoll.tree import Tree


@dataclass(frozen=True)
class StaleUpdates(Scaling):
    """s(t) u in place of an update u whose model is t steps old; both ends know t, from the versions of models.

    No update grows, so a bound that holds before it holds behind it. With real sums `Discounted` does the same behind
    the transforms. No name in a file: a round asks for it.
    """

    allowed_after_noise: ClassVar[bool] = True  # what follows, [secure]'s fixed_point, refuses and knows why
    keeps_zeros: ClassVar[bool] = True

    discount: StalenessDiscount

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        return self, spec

    def scaled(self, update: Update, state: Tree) -> tuple[Update, Tree]:
        by = self.discount(update.staleness.to(update.weight.device))
        return update, tree.map(lambda _: by, update.value)
