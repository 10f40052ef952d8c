"""Device classes that come with the package: who has which speed and which link, as data with a source."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from atoll.clock.quantities import ConstantQuantity, Quantity, read_quantity
from atoll.errors import ConfigError

COLUMNS = ("slowness", "up_mbps", "down_mbps", "latency_ms", "loss")
_LEAST = {"slowness": (0.0, True), "up_mbps": (0.0, True), "down_mbps": (0.0, True)}  # above 0; the others at least 0
IDEAL: dict[str, Quantity] = {
    "slowness": ConstantQuantity(1.0),
    "up_mbps": ConstantQuantity(float("inf")),
    "down_mbps": ConstantQuantity(float("inf")),
    "latency_ms": ConstantQuantity(0.0),
    "loss": ConstantQuantity(0.0),
}


@dataclass(frozen=True)
class DeviceClass:
    """One kind of device."""

    name: str
    about: str
    source: str
    columns: Mapping[str, Quantity]


def device_classes() -> dict[str, DeviceClass]:
    """All that come with the package, by name."""
    return {name: device_class(name, "clock.devices") for name in _names()}


@cache
def _names() -> tuple[str, ...]:
    folder = files("atoll.clock") / "classes"
    return tuple(sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")))


@cache
def device_class(name: str, where: str) -> DeviceClass:
    if name not in _names():
        raise ConfigError(f"{where}: there are no {name!r}. Known: {', '.join(_names())}; or give clock.trace.")
    table = tomllib.loads((files("atoll.clock") / "classes" / f"{name}.toml").read_text("utf-8"))
    columns = IDEAL | read_columns(table, where)
    return DeviceClass(name, table["about"], table["source"].strip(), columns)


def read_columns(table: Mapping[str, Any], where: str) -> dict[str, Quantity]:
    """The columns that a table gives."""
    given = {name: table[name] for name in COLUMNS if table.get(name) is not None}
    return {name: read_column(name, value, f"{where}.{name}") for name, value in given.items()}


def read_column(name: str, value: Any, where: str) -> Quantity:
    return read_quantity(value, where, *_LEAST.get(name, (0.0, False)))
