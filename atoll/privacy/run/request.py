"""What a file asks of the mechanisms on updates: which delta counts, by which accountant, within which budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from atoll.core import Calibrated, Transform, transform_name
from atoll.errors import ConfigError
from atoll.privacy import check_delta
from atoll.privacy.run.tables import PrivacyTable, SimulateTable


@dataclass(frozen=True)
class Crowd:
    """What a shuffle hides each report among: at least so many, and what one round of it takes of the run's delta."""

    reports: int
    delta: float

    @classmethod
    def of(cls, reports: int, delta: float, rounds: int) -> Crowd:
        """Half of the run's delta is for its shuffles, the other half for their composition."""
        return cls(reports, delta / (2 * rounds))


@dataclass(frozen=True)
class PrivacyRequest:
    """The delta, accountant and budget that were asked for, and what the noise was calibrated to."""

    delta: float
    accountant: str = "auto"
    budget: float | None = None
    simulate: SimulateTable | None = None
    target: tuple[float, float] | None = None  # (epsilon, delta) that the noise was chosen for
    crowd: Crowd | None = None  # None: whoever reads a report knows whose it is


def read_request(table: PrivacyTable | None, transforms: Sequence[Transform], population: int) -> PrivacyRequest:
    """What the file says, checked: which delta counts, and that it is one that protects anybody."""
    table = table or PrivacyTable()
    units = table.simulate.population if table.simulate else population
    mechanism = next((x for x in transforms if has_target(x)), None)
    delta = table.delta if mechanism is None else mechanism.delta
    where = "privacy.delta" if mechanism is None else f"{transform_name(mechanism)}.delta"
    if mechanism is not None and delta is not None and table.delta not in (None, delta):
        raise ConfigError(f"privacy.delta: {table.delta:g}, and {where} is {delta:g}. Leave privacy.delta out.")
    if delta is None:
        delta = 0.1 / units
    else:
        _check_protects(where, delta, units)
    return PrivacyRequest(delta, table.accountant, table.budget, table.simulate)


def has_target(transform: Transform) -> TypeGuard[Calibrated]:
    """Has it an epsilon or a delta in place of a noise multiplier?"""
    return isinstance(transform, Calibrated) and (transform.epsilon is not None or transform.delta is not None)


def _check_protects(where: str, delta: float, units: int) -> None:
    check_delta(where, delta)
    if delta * units > 1 + 1e-9:
        raise ConfigError(
            f"{where}: {delta:g} is above 1 / clients ({1 / units:g}): a mechanism may publish one client "
            f"as it is and still keep it. Use {0.1 / units:.1g} or less."
        )
