"""Who sends to whom in one round: directed edges between nodes, and what follows from them alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array  # slow to import

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Topology:
    """N nodes and E directed edges without loops, each once, in the order of (target, source).

    >>> ring = Topology.of(4, [(0, 1), (1, 2), (2, 3), (3, 0)], both_ways=True)
    >>> ring.edges, ring.symmetric, ring.connected
    (8, True, True)
    """

    nodes: int
    source: Ints  # (E,)
    target: Ints  # (E,)
    given: Floats | None = None  # (E,) what a file says of each edge: how much its target takes of its source
    own: Floats | None = None  # (N,) and what a node keeps; not a number where the file does not say

    @classmethod
    def of(
        cls,
        nodes: int,
        pairs: Ints | list[tuple[int, int]],
        both_ways: bool = False,
        given: Floats | None = None,
        own: Floats | None = None,
    ) -> Topology:
        """From pairs (source, target): loops are left out, and what is there twice is taken once."""
        array = np.asarray(pairs, np.int64).reshape(-1, 2)
        if both_ways:
            array = np.concatenate([array, array[:, ::-1]])
            given = None if given is None else np.concatenate([given, given])
        chosen = np.flatnonzero(array[:, 0] != array[:, 1])
        _, first = np.unique(array[chosen, 1] * nodes + array[chosen, 0], return_index=True)
        chosen = chosen[first]
        return cls(nodes, array[chosen, 0], array[chosen, 1], None if given is None else given[chosen], own)

    def only(self, edges: NDArray[np.bool_]) -> Topology:
        """These edges of it."""
        return Topology(self.nodes, self.source[edges], self.target[edges])

    @property
    def edges(self) -> int:
        """How many messages travel in a round: two for a link that is used both ways."""
        return len(self.source)

    @cached_property
    def in_degree(self) -> Ints:
        return np.bincount(self.target, minlength=self.nodes)

    @cached_property
    def out_degree(self) -> Ints:
        return np.bincount(self.source, minlength=self.nodes)

    @cached_property
    def symmetric(self) -> bool:
        """Is every link used both ways?"""
        there, back = (np.sort(a * self.nodes + b) for a, b in self._ends)
        return bool(np.array_equal(there, back))

    @cached_property
    def regular(self) -> bool:
        """Has every node as many neighbours as any other, in and out?"""
        degrees = np.concatenate([self.in_degree, self.out_degree])
        return bool((degrees == degrees[0]).all())

    @cached_property
    def connected(self) -> bool:
        """Does what any node knows reach every other, in time?"""
        return self.components == 1

    @cached_property
    def components(self) -> int:
        """Parts between which nothing travels, or only one way."""
        from scipy.sparse.csgraph import connected_components

        return int(connected_components(self.matrix(np.ones(self.edges)), connection="strong")[0])

    def matrix(self, values: Floats) -> csr_array:
        """(N, N): a row for each target, a column for each source, these values at the edges."""
        from scipy.sparse import csr_array

        return csr_array((values, (self.target, self.source)), shape=(self.nodes, self.nodes))

    def pairs(self) -> list[list[int]]:
        """The edges as lists; of links that are used both ways, each once."""
        once = self.source < self.target if self.symmetric else np.ones(self.edges, bool)
        return np.stack([self.source[once], self.target[once]], 1).tolist()  # type: ignore[no-any-return]

    @property
    def _ends(self) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
        return (self.source, self.target), (self.target, self.source)
