"""Who is whose edge in a hierarchy: from clients to edges, from edges to theirs, and at last to the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from atoll.errors import ConfigError

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Edges:
    """Levels from the clients up: `above[0][i]` is the edge of client i, `above[1][e]` that of edge e, ...; the edges
    of the last level are the server's.

    `rounds[l]` are those that an edge of level l makes before it reports; `shares[0]` of an edge's clients take part
    in each of them, `shares[l]` of the edges of level l in each round of the one above.
    """

    above: tuple[Ints, ...]
    sizes: tuple[int, ...]  # edges of each level
    rounds: tuple[int, ...]
    shares: tuple[float, ...]

    @property
    def levels(self) -> int:
        return len(self.sizes)

    @property
    def turns(self) -> int:
        """Trainings of a client in one round of the server."""
        return prod(self.rounds)

    def period(self, level: int) -> int:
        """Trainings from one report of an edge of this level to its next."""
        return prod(self.rounds[: level + 1])

    def parents(self, level: int) -> Ints:
        """The edge above each edge of a level; all of the last one have the server, 0."""
        last = level + 1 == self.levels
        return np.zeros(self.sizes[level], np.int64) if last else self.above[level + 1]


def make_edges(
    population: int,
    names: Sequence[str],
    edges: Sequence[int],
    groups: Sequence[Sequence[int | str]] | None,
    rounds: Sequence[int],
    share: Sequence[float],
) -> Edges:
    """As a file asks for them; a ConfigError for a client or an edge that is left out."""
    if groups is not None:
        own, sizes = _named_groups(groups, population, names), (len(groups), *edges)
    else:
        own, sizes = None, tuple(edges)
    if not sizes:
        raise ConfigError("round.edges: names no level. Give the number of edges of each, such as edges = [4].")
    below = (population, *sizes[:-1])
    for i, (many, few) in enumerate(zip(below, sizes, strict=True)):
        if few > many:
            what = f"{many} clients" if i == 0 else f"the {many} edges below"
            raise ConfigError(
                f"round.edges: {few} edges for {what} leave some without any. Use at most {many}, from the clients up."
            )
    above = [_split(many, few) for many, few in zip(below, sizes, strict=True)]
    given = tuple(rounds) or (1,) * len(sizes)
    shares = tuple(share) or (1.0,) * (len(sizes) + 1)
    _check_length("rounds", given, len(sizes), "for each level of edges, from the clients up")
    _check_length("share", shares, len(sizes) + 1, "of the clients of an edge, then one for each level of edges")
    return Edges(tuple(above if own is None else [own, *above[1:]]), sizes, given, shares)


def _split(many: int, few: int) -> Ints:
    """In a row, in parts of nearly one size.

    >>> _split(5, 2).tolist()
    [0, 0, 0, 1, 1]
    """
    return np.repeat(np.arange(few), [len(part) for part in np.array_split(np.arange(many), few)])


def _named_groups(groups: Sequence[Sequence[int | str]], population: int, names: Sequence[str]) -> Ints:
    numbers: dict[int | str, int] = {i: i for i in range(population)}
    numbers |= {name: i for i, name in enumerate(names)}
    own = np.full(population, -1)
    for edge, clients in enumerate(groups):
        if not clients:
            raise ConfigError(f"round.groups: edge {edge} has no clients. Leave it out.")
        for client in clients:
            if client not in numbers:
                raise ConfigError(f"round.groups: there is no client {client!r}. Use names, or 0 to {population - 1}.")
            if own[numbers[client]] >= 0:
                raise ConfigError(
                    f"round.groups: client {client!r} has two edges, {own[numbers[client]]} and {edge}. Keep one."
                )
            own[numbers[client]] = edge
    left = np.flatnonzero(own < 0)
    if len(left):
        shown = ", ".join(str(names[i] if names else i) for i in left[:5]) + (", ..." if len(left) > 5 else "")
        raise ConfigError(
            f"round.groups: leaves {len(left)} of {population} clients out ({shown}). "
            "Give each an edge, or leave groups out: edges = [4] splits them in a row."
        )
    return own


def _check_length(name: str, given: Sequence[float], wanted: int, what: str) -> None:
    if len(given) != wanted:
        raise ConfigError(f"round.{name}: has {len(given)} numbers, and needs {wanted}: one {what}.")
