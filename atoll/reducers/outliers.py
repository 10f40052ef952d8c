"""Whoever is too far from the middle is left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from atoll.reducers.defence import Above0, Weighing
from atoll.reducers.geometric_median import weiszfeld
from atoll.reducers.rows import Rows
from atoll.tree import Tree

_STEPS, _SMOOTHING = 100, 1e-6


@dataclass(frozen=True)
class ThreeSigma(Weighing):
    """The mean of those whose distance to the geometric median is below mean + `sigmas` deviations of all distances.

    FedMLSecurity (Han et al., KDD 2024). Liars widen the deviation that they are measured by: m of them in one place
    are found if (n - m) / m > sigmas^2, so that among ten clients nobody is ever three deviations away; and behind one
    that is very far another one hides.
    """

    assumes: ClassVar[str] = "n > 1 + sigmas^2 clients (11 or more for 3), of which one lies; a second one breaks it"

    sigmas: Above0 = 3.0

    def weigh(self, rows: Rows, key: Tensor) -> tuple[Tensor, Tree]:
        _, away = weiszfeld(rows.distances, _STEPS, _SMOOTHING)
        most = away.mean() + self.sigmas * away.std(correction=0)
        chosen = away <= most * (1 + 1e-9)
        return chosen / chosen.sum(), {"scores": away.float(), "chosen": rows.ids[chosen], "bound": most.float()}

    def tolerates(self, clients: int) -> int:
        return int(clients > 1 + self.sigmas**2 + 1e-9)
