"""Feature skew by Gaussian noise: the same rows, less clearly seen by some."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from atoll.data.partition.iid import Iid
from atoll.data.partition.partition import Partition
from atoll.data.partition.redraw import Profile


@dataclass(frozen=True)
class FeatureNoise:
    """Rows dealt at random in equal parts, and Gaussian noise on the inputs that grows from client to client.

    Client i of N, i = 1..N, has noise of variance level * i / N, drawn once for each row: Li et al. (NIID-Bench, 2022),
    https://arxiv.org/abs/2102.02079. `profile = "niid-bench"`, as its code: of standard deviation
    level * (i - 1) / (N - 1), drawn anew at every access; the test set is seen by every client through its own noise.
    Nothing is clamped.
    """

    clients: Annotated[int, Field(ge=1)]
    level: Annotated[float, Field(ge=0)]
    profile: Profile = "paper"

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        even = Iid(self.clients)(labels, keys, examples, key)
        return replace(self.over(even), provenance=f"{self!r} key={key.tolist()}")

    def over(self, partition: Partition) -> Partition:
        """The same clients with this noise."""
        return replace(partition, noise=self.deviations(), fresh=self.profile == "niid-bench")

    def deviations(self) -> Tensor:
        """The standard deviation of each client's noise, (N,)."""
        N = self.clients
        if self.profile == "niid-bench":
            return self.level * torch.arange(N, dtype=torch.float64) / max(1, N - 1)
        return (self.level * torch.arange(1, N + 1, dtype=torch.float64) / N).sqrt()
