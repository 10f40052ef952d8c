"""Label skew and size skew by the Dirichlet distribution."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from atoll.data import draws
from atoll.data.partition import assign
from atoll.data.partition.partition import Partition
from atoll.errors import PartitionError

Ints = NDArray[np.int64]
Short = Literal["redraw", "borrow"]

_DRAWS = 100
_HOPELESS = 30  # clients short in one draw: a draw with none has a chance of about exp(-30)


@dataclass(frozen=True)
class Dirichlet:
    """Every class is shared out by its own draw from Dirichlet(alpha): label skew, and sizes that differ.

    p_k ~ Dir(alpha, ..., alpha) over the N clients; client c gets a share p_kc of the rows of class k.
    Hsu, Qi, Brown (2019), https://arxiv.org/abs/1909.06335; Li et al. (NIID-Bench, 2022), without the cap on large
    parties that its code adds.

    A draw that leaves a client below `minimum` is drawn again (at most 100 times, or until it is clear that it
    will not happen); `short = "borrow"` takes the draw and moves rows from the largest clients instead.
    """

    clients: Annotated[int, Field(ge=1)]
    alpha: Annotated[float, Field(gt=0)]
    minimum: Annotated[int, Field(ge=1)] = 2
    short: Short = "redraw"

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        classes = assign.classes_of(labels, "dirichlet")
        totals = np.bincount(classes)
        counts = _draw(self, totals, examples, key)
        owner = assign.owners_by_counts(counts, classes, draws.fold(key, 0))
        owner = assign.lend(owner, self.clients, self.minimum, draws.fold(key, 1))
        return assign.gather(owner, self.clients, draws.fold(key, 2), repr(self))


@dataclass(frozen=True)
class QuantityDirichlet:
    """Sizes by one draw from Dirichlet(alpha), rows at random: size skew without label skew.

    Li et al. (NIID-Bench, 2022), https://arxiv.org/abs/2102.02079. `minimum` and `short` as for dirichlet.
    """

    clients: Annotated[int, Field(ge=1)]
    alpha: Annotated[float, Field(gt=0)]
    minimum: Annotated[int, Field(ge=1)] = 2
    short: Short = "redraw"

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        counts = _draw(self, np.array([examples]), examples, key)
        owner = assign.owners_by_counts(counts, np.zeros(examples, np.int64), draws.fold(key, 0))
        owner = assign.lend(owner, self.clients, self.minimum, draws.fold(key, 1))
        return assign.gather(owner, self.clients, draws.fold(key, 2), repr(self))


def _draw(wish: Dirichlet | QuantityDirichlet, totals: Ints, examples: int, key: Tensor) -> Ints:
    """How many rows of each class each client gets, (K, N)."""
    if wish.alpha <= 0:
        raise PartitionError(
            f"partition.alpha: must be above 0 (got {wish.alpha}). For an even split use partition.name = 'iid'."
        )
    assign.enough(wish.clients, wish.minimum, examples)
    for attempt in range(_DRAWS):
        shares = draws.dirichlet(draws.fold(key, 3 + attempt), wish.alpha, (len(totals), wish.clients))
        counts = assign.cut(shares, totals)
        short = int((counts.sum(0) < wish.minimum).sum())
        if short == 0 or wish.short == "borrow":
            return counts
        if short > _HOPELESS:
            break
    raise PartitionError(
        f"partition.minimum: {short} of {wish.clients} clients have fewer than {wish.minimum} examples at alpha = "
        f"{wish.alpha}, in draw {attempt + 1} as in those before. Use a larger alpha, fewer clients, "
        "a smaller minimum, or partition.short = 'borrow' to fill them from the largest clients."
    )
