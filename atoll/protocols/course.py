"""The course of a protocol as a client sees it, and where clients are lost on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lgamma

import numpy as np
import torch
from numpy.typing import NDArray

from atoll import rng
from atoll.errors import ConfigError, ProtocolError
from atoll.protocols.in_process import run_protocol
from atoll.protocols.secure_aggregation import SecureAggregation
from atoll.threefry import uniform_at

_DROPS, _STEP = range(2)  # places of a client's draws in a round
_MOST = 12  # clients of a rehearsal
NEVER = 1 << 30  # the step at which a client is lost that stays


@dataclass(frozen=True)
class Course:
    """So many answers of each client, one of which carries its vector, counted from 0."""

    steps: int
    vector_step: int
    fatal: tuple[int, ...] = ()  # steps at which nobody may be lost, however many are left

    def lost_at(self, seed: int, number: int, ids: NDArray[np.int64], dropout: float) -> NDArray[np.int64]:
        """The first answer that each client does not give in round `number`; NEVER where it gives all.

        Drawn from (seed, round, client): who else is asked, the engine and its chunks do not matter.
        """
        path = (seed, "secure", number)
        step = (uniform_at(path, ids, _STEP) * self.steps).astype(np.int64)
        return np.where(uniform_at(path, ids, _DROPS) < dropout, step, NEVER)

    def ends(self, lost_at: NDArray[np.int64]) -> bool:
        """Is somebody lost where nobody may be?"""
        return bool(np.isin(lost_at, self.fatal).any())

    def void_probability(self, clients: int, least: int, dropout: float) -> float:
        """That fewer than `least` of so many stay, or one is lost where nobody may be.

        1 - sum over m up to clients - least of comb(clients, m) q^m (1 - dropout)^(clients - m), where q is dropout
        times the share of steps that are not fatal.
        """
        harmless = dropout * (1 - len(self.fatal) / max(1, self.steps))
        lost = np.arange(clients - least + 1 if harmless else 1)
        ways = np.array([lgamma(clients + 1) - lgamma(m + 1) - lgamma(clients - m + 1) for m in lost])
        with np.errstate(divide="ignore", invalid="ignore"):
            stay = np.where(lost < clients, (clients - lost) * np.log(1 - dropout), 0.0)
            gone = np.where(lost > 0, lost * np.log(harmless), 0.0)
        return float(np.clip(1 - np.exp(ways + stay + gone).sum(), 0.0, 1.0))

    def in_sum(self, lost_at: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whose vectors arrive."""
        return np.asarray(lost_at > self.vector_step)


def rehearse(protocol: SecureAggregation) -> Course:
    """Found by trying, among a few clients that hold one number each: one of them is lost at every step in turn."""
    least = {n: at_least for n in range(3, _MOST + 1) if (at_least := least_of(protocol, n)) is not None}
    if not least:
        raise ProtocolError(f"{type(protocol).__name__}: does not run among 3 to {_MOST} clients. Which are its own?")
    clients = next((n for n, at_least in least.items() if at_least < n), min(least))
    _, steps = _sum_without(protocol, clients, None)
    sums = [_sum_without(protocol, clients, step)[0] for step in range(steps)]
    missing = [step for step, ids in enumerate(sums) if ids is not None and 0 not in ids]
    fatal = tuple(step for step, ids in enumerate(sums) if ids is None)
    return Course(steps, max(missing, default=steps - 1 if fatal else -1), fatal)


def least_of(protocol: SecureAggregation, clients: int) -> int | None:
    """How many of so many must stay; None where it is not for so few."""
    try:
        least = protocol.least(clients)
    except ConfigError:
        return None
    return least if least <= clients else None


def _sum_without(protocol: SecureAggregation, clients: int, lost: int | None) -> tuple[Sequence[int] | None, int]:
    """Who is in the sum where client 0 is lost at this step, None where there is no sum; and how many steps it took."""
    own = {id: {"vector": torch.ones(1, dtype=torch.int64)} for id in range(clients)}
    try:
        result, transcript = run_protocol(
            protocol, own, rng.key("rehearsal"), lambda step, id: id == 0 and step == lost
        )
    except ProtocolError:
        if lost is None:
            raise
        return None, 0
    return result["ids"].tolist(), len(transcript.up)
