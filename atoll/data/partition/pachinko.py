"""Pachinko allocation: a mixture of coarse classes for every client, and in each a mixture of fine ones."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field
from torch import Tensor

from atoll.data.partition import assign
from atoll.data.partition.dirichlet import above_zero
from atoll.data.partition.fill import Bools, Floats, Ints, fill
from atoll.data.partition.partition import Partition
from atoll.errors import PartitionError
from atoll.rng import host


@dataclass(frozen=True)
class Pachinko:
    """Every client draws `points` rows down a tree: a coarse class from Dir(alpha), in it a class from Dir(beta).

    Both mixtures are the client's own; rows are drawn without replacement over all clients. A class that has run out is
    taken off the tree and the chances of its siblings are scaled up, a coarse class goes with its last class. Rows
    that nobody drew are left out. Reddi et al. (2020), https://arxiv.org/abs/2003.00295, after Li and McCallum (2006):
    CIFAR-100, 500 clients of 100, alpha 0.1, beta 10. `coarse[k]` is the coarse class of class k; without it the data
    must have a key "coarse".
    """

    clients: Annotated[int, Field(ge=1)]
    points: Annotated[int, Field(ge=1)]
    alpha: Annotated[float, Field(gt=0)] = 0.1
    beta: Annotated[float, Field(gt=0)] = 10.0
    coarse: tuple[Annotated[int, Field(ge=0)], ...] | None = None

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        classes = assign.classes_of(labels, "pachinko")
        above_zero(self.alpha)
        assign.check_enough_rows(self.clients, self.points, examples)
        parents = self._parents(labels, classes, keys)
        counts = self._counts(parents, np.bincount(classes), key)
        owner = assign.owners_by_counts(counts, classes, host.fold(key, 2))
        return assign.partition_by_owner(owner, self.clients, host.fold(key, 3), repr(self))

    def _parents(self, labels: Tensor | None, classes: Ints, keys: dict[str, Tensor]) -> Ints:
        """The coarse class of each class that occurs, numbered from 0."""
        first = np.unique(classes, return_index=True)[1]
        class_labels = labels.numpy()[first] if labels is not None else first
        if self.coarse is not None:
            if (largest := int(class_labels.max())) >= len(self.coarse):
                raise PartitionError(
                    f"partition.coarse: has {len(self.coarse)} entries, and there is a class {largest}. "
                    "Give the coarse class of every class."
                )
            parents = np.asarray(self.coarse)[class_labels]
        elif "coarse" in keys:
            above = keys["coarse"].numpy()
            parents = above[first]
            torn = np.flatnonzero(parents[classes] != above)
            if len(torn):
                k = int(class_labels[classes[torn[0]]])
                raise PartitionError(
                    f"partition.name = 'pachinko': class {k} has several coarse classes. Give partition.coarse."
                )
        else:
            raise PartitionError(
                "partition.coarse: this data does not say which classes belong together. "
                "Give the coarse class of every class, e.g. coarse = [0, 0, 1, 1]."
            )
        return np.unique(parents, return_inverse=True)[1]

    def _counts(self, parents: Ints, totals: Ints, key: Tensor) -> Ints:
        C, K, N = int(parents.max()) + 1, len(totals), self.clients
        above = host.log_gamma(host.fold(key, 0), self.alpha, N * C).reshape(N, C)
        below = host.log_gamma(host.fold(key, 1), self.beta, N * K).reshape(N, K)
        member = parents == np.arange(C)[:, None]  # (C, K)

        def chances(client: int, left: Bools) -> Floats:
            alive = member & left
            some = alive.any(1)
            fine = np.zeros((C, K))
            fine[some] = assign.shares(np.where(alive[some], below[client], -np.inf))
            return assign.shares(np.where(some, above[client], -np.inf)) @ fine

        return fill(chances, self.points, totals, N, host.fold(key, 4))
