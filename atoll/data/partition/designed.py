"""Label skew of a strength that is asked for."""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from pydantic import Field
from torch import Tensor

from atoll.data.partition import assign
from atoll.data.partition.dirichlet import Dirichlet
from atoll.data.partition.inverse_design import JumpError, search
from atoll.data.partition.partition import Partition
from atoll.rng import host

_KEYS = 10  # with few clients the draws of one key may jump over the skew that is wanted


@dataclass(frozen=True)
class Designed:
    """The Dirichlet split whose label skew is `emd`, the mean earth mover's distance, to within 0.02.

    The alpha is searched for (`inverse_design.py`) and stands in `Partition.provenance`; the rest is `dirichlet`.
    """

    clients: Annotated[int, Field(ge=1)]
    emd: Annotated[float, Field(gt=0, lt=2)]
    minimum: Annotated[int, Field(ge=1)] = 2

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        totals = np.bincount(assign.classes_of(labels, "designed"))
        for attempt in range(_KEYS):
            own = host.fold(key, attempt)
            try:
                design = search(totals, self.clients, self.emd, self.minimum, own)
            except JumpError:
                if attempt + 1 == _KEYS:
                    raise
                continue
            break
        plain = Dirichlet(self.clients, design.alpha, self.minimum)(labels, keys, examples, own)
        return replace(plain, provenance=f"{self!r} = {plain.provenance}")
