"""Who shares masks with whom: everybody with everybody, or each with the next on a ring in random order.

A ring where each is joined to the nearest `degree` others falls apart only where two runs of degree / 2 neighbours are
gone (Bell et al., Secure single-server aggregation with (poly)logarithmic overhead, 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb

from atoll.protocols.secure_aggregation import RandomBytes

_TAG_BYTES = 16  # random tags of so many bytes are distinct, and sorting by them is a uniform order


@dataclass(frozen=True)
class Graph:
    """Each client's secrets are shared among its neighbours and itself; `threshold` of these shares give them back."""

    degree: int  # an even number of neighbours of each; all others, where they are no more
    threshold: int
    least: int  # clients that must stay to the end

    def neighbours(self, ids: Sequence[int], random: RandomBytes) -> dict[int, list[int]]:
        """The neighbours of each, in increasing order."""
        if self.degree >= len(ids) - 1:
            return {id: [other for other in ids if other != id] for id in ids}
        ring = sorted(ids, key=lambda id: random(_TAG_BYTES))
        reach = [step for step in range(-(self.degree // 2), self.degree // 2 + 1) if step]
        return {id: sorted(ring[(at + step) % len(ring)] for step in reach) for at, id in enumerate(ring)}


@lru_cache(maxsize=64)
def sparse_graph(clients: int, corrupt: int, dropped: int, privacy_bits: int, correctness_bits: int) -> Graph:
    """The least degree for which, with so many clients corrupt and so many dropped,

    - all honest clients have fewer than `threshold` corrupt neighbours, and those honest who stay are connected, but
      for a probability of 2^-privacy_bits each;
    - all clients keep `threshold` neighbours, but for a probability of 2^-correctness_bits.

    All others are neighbours where no smaller degree will do. Probabilities are hypergeometric tails, exact, times the
    number of clients; the corrupt may be among those left when the others have dropped out before the graph was drawn.
    """
    least = max(2, clients - dropped)
    for degree in range(2, least - 1, 2):
        if not _connected(clients, corrupt + dropped, degree, privacy_bits):
            continue
        safe = _least_safe(least - 1, corrupt, degree, clients << privacy_bits)
        kept = _most_kept(clients - 1, dropped, degree, clients << correctness_bits)
        if safe <= kept:
            return Graph(degree, (safe + kept + 1) // 2, least)
    return Graph(max(clients - 1, 1), max(2, least), least)


def _connected(clients: int, gone: int, degree: int, bits: int) -> bool:
    """Two runs of degree / 2 on a ring are gone with a probability of at most 2^-bits.

    They begin at one of comb(clients, 2) pairs of places, and comb(gone, degree) / comb(clients, degree) is the
    probability that all clients of a pair of runs are gone.
    """
    return comb(clients, 2) * comb(gone, degree) << bits <= comb(clients, degree)


def _least_safe(others: int, corrupt: int, degree: int, against: int) -> int:
    """The least t of at least 2 for which P(corrupt neighbours >= t) <= 1 / against."""
    tail, total = 0, comb(others, degree)
    for t in range(min(corrupt, degree), 0, -1):
        tail += comb(corrupt, t) * comb(others - corrupt, degree - t)
        if tail * against > total:
            return max(2, t + 1)
    return 2


def _most_kept(others: int, dropped: int, degree: int, against: int) -> int:
    """The greatest t for which P(neighbours that stay < t) <= 1 / against."""
    tail, total, stay = 0, comb(others, degree), others - min(dropped, others)
    for t in range(degree + 1):
        tail += comb(stay, t) * comb(others - stay, degree - t)
        if tail * against > total:
            return t
    return degree
