"""Who has which device and link: the same for a client in every round of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from atoll.clock.clock_table import ClockTable
from atoll.clock.device_classes import COLUMNS, IDEAL, device_class, read_columns
from atoll.clock.quantities import Floats, Ints, Quantity
from atoll.clock.traces import read_device_trace
from atoll.errors import ConfigError
from atoll.threefry import uniform_at

# Places of a client's draws. One draw ranks both directions: who has a good downlink has a good uplink.
_PLACES = {"slowness": 0, "up_mbps": 1, "down_mbps": 1, "latency_ms": 2, "loss": 3}
_CLASS_PLACE = 4
_MEGABIT = 1e6 / 8  # bytes


class DeviceProfile(NamedTuple):
    """The devices of some clients, (C,) each."""

    slowness: Floats
    up: Floats  # bytes per second
    down: Floats
    latency: Floats  # seconds, one way
    loss: Floats

    @property
    def size(self) -> int:
        return len(self.slowness)


@dataclass(frozen=True, eq=False)
class Devices:
    """Classes of devices by their shares, and what is said of every client; a trace has the last word."""

    classes: Sequence[tuple[float, Mapping[str, Quantity]]] = ((1.0, IDEAL),)
    trace: Mapping[str, Floats] = field(default_factory=dict)
    seed: int = 0

    @classmethod
    def of(cls, table: ClockTable, seed: int, population: int, names: Sequence[str] = ()) -> Devices:
        given = read_columns(table.model_dump(), "clock")
        chosen = table.devices if isinstance(table.devices, dict) else {table.devices: 1.0} if table.devices else {}
        for name, share in chosen.items():
            if not share > 0:
                raise ConfigError(
                    f"clock.devices: the share of {name} must be above 0 (got {share:g}). Leave out a class that "
                    "nobody has."
                )
        classes = [(share, {**device_class(name, "clock.devices").columns, **given}) for name, share in chosen.items()]
        trace = read_device_trace(table.trace, population, names) if table.trace else {}
        return cls(_shares(classes or [(1.0, {**IDEAL, **given})]), trace, seed)

    def profile(self, ids: Ints) -> DeviceProfile:
        """Only these clients are drawn."""
        own = self._class_of(ids)
        columns = {name: self._column(name, ids, own) for name in COLUMNS}
        return DeviceProfile(
            columns["slowness"],
            columns["up_mbps"] * _MEGABIT,
            columns["down_mbps"] * _MEGABIT,
            columns["latency_ms"] / 1e3,
            columns["loss"],
        )

    def _class_of(self, ids: Ints) -> Ints:
        bounds = np.cumsum([share for share, _ in self.classes])
        return np.searchsorted(bounds[:-1], self._draw(ids, _CLASS_PLACE), side="right")

    def _column(self, name: str, ids: Ints, own: Ints) -> Floats:
        if name in self.trace:
            return self.trace[name][ids]
        u, values = self._draw(ids, _PLACES[name]), np.empty(len(ids))
        for i, (_, columns) in enumerate(self.classes):
            values[own == i] = columns[name].quantile(u[own == i])
        return values

    def _draw(self, ids: Ints, place: int) -> Floats:
        return uniform_at((self.seed, "clock", "device"), ids, place)


def _shares(classes: list[tuple[float, dict[str, Quantity]]]) -> list[tuple[float, dict[str, Quantity]]]:
    total = sum(share for share, _ in classes)
    if abs(total - 1) > 1e-6:
        raise ConfigError(f"clock.devices: the shares sum to {total:g}. Let them sum to 1.")
    return classes
