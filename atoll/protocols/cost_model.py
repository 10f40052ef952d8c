"""What a protocol would take among more clients and for longer vectors, from real runs of small ones here."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from atoll import rng
from atoll.errors import ProtocolError
from atoll.protocols.course import Course, least_of
from atoll.protocols.in_process import run_protocol
from atoll.protocols.protocol_costs import QUANTITIES, ProtocolCosts
from atoll.protocols.secure_aggregation import SecureAggregation

Floats = NDArray[np.float64]
_CLIENTS = (4, 12, 20, 8)  # that are tried, while there is time: the first two always, so they are far apart
_FIRST, _GROWTH, _LONG = 16, 8, 1 << 18  # numbers in the vectors that are tried
_SHORTER = 0.1  # what the errors of shorter vectors count: some protocols go by steps of many numbers
_ENOUGH, _ALL = 1.0, 6.0  # processor seconds, after which no longer vector is tried, and no larger cohort
_GROWS = 3.0  # times as long as the vector before: then it is the length that takes the time, and not drawing keys


class ProtocolWork(NamedTuple):
    """What a protocol is to do."""

    clients: int
    partners: int  # others that each client has to do with
    numbers: int  # in a vector
    lost: int = 0  # clients whose vector never comes

    def features(self) -> Floats:
        """What costs are linear in: those of a client on average (of which some have more to do), then the server's."""
        p, n = float(self.partners), float(self.clients)
        size, lost = float(self.numbers), float(self.lost)
        return np.array([1.0, n, p, p * p, 1 / n, size, p * size, size / n, n * p, n * size, lost * p * size])


_CLIENT, _SERVER, _FEATURES = slice(0, 8), slice(0, 11), 11


@dataclass(frozen=True, eq=False)
class CostModel:
    """Least squares of relative errors with coefficients that are not negative, one row for each quantity."""

    coefficients: Floats  # (10, 11)
    fit: Floats  # the fields of `Fit`

    @classmethod
    def nothing(cls) -> CostModel:
        """Before anything was measured."""
        return cls(np.zeros((len(QUANTITIES), _FEATURES)), np.zeros(len(Fit._fields)))

    def costs(self, work: ProtocolWork) -> ProtocolCosts:
        """What this work would take. Who is lost before its vector takes next to nothing."""
        there = 1 - work.lost / max(1, work.clients)
        found = ProtocolCosts.read((self.coefficients @ work.features()).tolist())
        return found._replace(up=found.up * there, down=found.down * there, client_seconds=found.client_seconds * there)

    @classmethod
    def fitted(cls, protocol: SecureAggregation, course: Course, clients: int, numbers: int) -> CostModel:
        """From real runs of no more clients and numbers than these; measured once in a process."""
        return _fitted(protocol, course, clients, numbers)


class Fit(NamedTuple):
    """How a cost model was found: so many runs, the largest that were tried, and the median relative errors on them."""

    runs: int
    clients: int
    numbers: int
    up_error: float
    down_error: float
    client_error: float
    server_error: float
    own_up_error: float = 0.0
    own_down_error: float = 0.0
    own_error: float = 0.0
    role_up_error: float = 0.0
    role_down_error: float = 0.0
    role_error: float = 0.0

    def errors(self) -> dict[str, float]:
        """By quantity."""
        return dict(zip(QUANTITIES, self[3:], strict=True))


@lru_cache(maxsize=32)  # a sweep asks for the same again and again, and Paillier's keys take seconds
def _fitted(protocol: SecureAggregation, course: Course, clients: int, numbers: int) -> CostModel:
    runs = _runs(protocol, course, clients, numbers)
    whole = [(work, costs) for work, costs in runs if not work.lost]
    fits = [
        _fit(runs, i, _SERVER) if name == "server_seconds" else _fit(whole, i, _CLIENT)
        for i, name in enumerate(QUANTITIES)
    ]
    largest = max(work.clients for work, _ in runs), max(work.numbers for work, _ in runs)
    fit = Fit(len(runs), *largest, *(error for _, error in fits))
    return CostModel(np.array([found for found, _ in fits]), np.array(fit))


def _fit(runs: list[tuple[ProtocolWork, ProtocolCosts]], quantity: int, columns: slice) -> tuple[Floats, float]:
    """The coefficients of one quantity, and the median of its relative errors."""
    from scipy.optimize import nnls  # takes a while to import

    rows = np.array([work.features() for work, _ in runs])
    if not any(costs[quantity] for _, costs in runs):
        return np.zeros(rows.shape[1]), 0.0
    taken = np.maximum([costs[quantity] for _, costs in runs], 1e-9)
    sizes = np.array([work.numbers for work, _ in runs])
    weights = np.where(sizes == sizes.max(), 1.0, _SHORTER)
    relative = rows[:, columns] / taken[:, None]
    scale = np.where(relative.any(0), relative.max(0), 1.0)
    found, _ = nnls(relative / scale * weights[:, None], weights)
    coefficients = np.zeros(rows.shape[1])
    coefficients[columns] = found / scale
    return coefficients, float(np.median(np.abs(rows @ coefficients / taken - 1)))


def _runs(
    protocol: SecureAggregation, course: Course, clients: int, numbers: int
) -> list[tuple[ProtocolWork, ProtocolCosts]]:
    """Real ones: cohorts of several sizes, vectors until they take long, with and without a vector that never comes."""
    runs, began = [], time.process_time()
    sizes = dict.fromkeys(min(n, clients) for n in _CLIENTS)
    for i, n in enumerate([n for n in sizes if least_of(protocol, n)] or [clients]):
        if i > 1 and time.process_time() - began > _ALL:
            break
        previous = math.inf
        for length in _lengths(numbers):
            before = time.process_time()
            works = [ProtocolWork(n, protocol.partners(n), length, lost) for lost in (0, 1)]
            runs += [(work, costs) for work in works if (costs := _least_of_two(protocol, course, work)) is not None]
            taken = time.process_time() - before
            if taken > max(_ENOUGH, _GROWS * previous):
                break
            previous = taken
    return runs


def _least_of_two(protocol: SecureAggregation, course: Course, work: ProtocolWork) -> ProtocolCosts | None:
    """The faster of two runs, or the only one where that took long."""
    before = time.process_time()
    first = _measured(protocol, course, work)
    if first is None or time.process_time() - before > _ENOUGH / 4:
        return first
    second = _measured(protocol, course, work)
    return first if second is None else min(first, second, key=lambda costs: costs.client_seconds)


def _lengths(numbers: int) -> list[int]:
    """From short to that of the vector itself.

    >>> _lengths(100), _lengths(10_000)
    ([12, 100], [16, 128, 1024, 10000])
    """
    longest = min(numbers, _LONG)
    found, length = [], min(_FIRST, max(1, longest // _GROWTH))
    while 2 * length <= longest:
        found.append(length)
        length *= _GROWTH
    return [*found, longest]


def _measured(protocol: SecureAggregation, course: Course, work: ProtocolWork) -> ProtocolCosts | None:
    """None where the protocol does not come to its end without whom was to be lost."""
    fits = max(1, (1 << protocol.bits - 1) // work.clients)  # as the sums of a run do
    own = {id: {"vector": torch.arange(work.numbers) % fits} for id in range(work.clients)}
    try:
        _, log = run_protocol(
            protocol,
            own,
            rng.key("costs"),
            lambda at, id: at == course.vector_step and id < work.lost,
            over_wire=True,
            keep_messages=False,
        )
    except ProtocolError:
        if not work.lost:
            raise
        return None
    return ProtocolCosts.of(log, work.clients)
