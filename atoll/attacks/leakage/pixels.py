"""What an attacker knows of any example before it attacks: its shape and the range of its numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.errors import ConfigError
from atoll.experiment import Setup

_LOOKED_AT = 2000


@dataclass(frozen=True)
class Pixels01:
    """The range [low, high] of decoded inputs: scores are of pictures whose numbers run from 0 to 1."""

    low: float
    high: float

    @classmethod
    def of(cls, setup: Setup) -> Pixels01:
        """The range over training rows: public knowledge, as the format of pictures is."""
        some = tree.to(tree.rows(setup.dataset.train, slice(0, _LOOKED_AT)), setup.device)
        x = setup.dataset.decode({**some, "key": torch.zeros(2, dtype=torch.int64, device=setup.device)})["x"]
        if isinstance(x, dict) or not x.is_floating_point():
            raise ConfigError(
                f"data: an example of {setup.dataset.name} is not made of real numbers (text, or several inputs), and "
                "these attacks look for some. Use --method property (of classes), loss or lira."
            )
        return cls(float(x.min()), max(float(x.max()), float(x.min()) + 1e-6))

    def unit(self, x: Tensor) -> Tensor:
        """Inputs as numbers from 0 to 1."""
        return ((x - self.low) / (self.high - self.low)).clamp(0, 1)

    def clamp(self, x: Tensor) -> Tensor:
        """Inputs that there can be."""
        return x.clamp(self.low, self.high)


def dummies(ids: Tensor, shape: tuple[int, ...], key: Tensor) -> Tensor:
    """(G, *shape) from N(0, 1), addressed by the ids of each group: the same whatever the stack."""
    rows = []
    for group in ids.tolist():
        own = key
        for client in group:
            own = rng.fold(own, client)
        rows.append(rng.normal(own, shape))
    return torch.stack(rows)
