"""A number for each client: the same for all, or drawn from a distribution by its place in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoll.errors import ConfigError

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


class Quantity(Protocol):
    """What one kind of number is among clients."""

    @property
    def lowest(self) -> float:
        """What no client is below."""
        ...

    def quantile(self, u: Floats) -> Floats:
        """The value below which a share u of all clients lies."""
        ...


@dataclass(frozen=True)
class ConstantQuantity:
    """The same for all."""

    value: float

    @property
    def lowest(self) -> float:
        return self.value

    def quantile(self, u: Floats) -> Floats:
        return np.full(len(u), self.value)


@dataclass(frozen=True)
class UniformQuantity:
    """Anything between two numbers, equally likely."""

    low: float
    high: float

    @property
    def lowest(self) -> float:
        return self.low

    def quantile(self, u: Floats) -> Floats:
        return self.low + (self.high - self.low) * u


@dataclass(frozen=True)
class LogNormalQuantity:
    """exp(N(log median, sigma)): half of all clients are below the median; sigma 0 is a constant."""

    median: float
    sigma: float

    @property
    def lowest(self) -> float:
        return self.median * math.exp(-9 * self.sigma)  # further down is nobody of 10^18

    def quantile(self, u: Floats) -> Floats:
        from scipy.special import ndtri  # slow to import, and few need it

        return np.asarray(self.median * np.exp(self.sigma * ndtri(u)))


@dataclass(frozen=True)
class PercentileTable:
    """A published table: linear between its points, in the logarithm where all values are above 0; flat outside."""

    shares: tuple[float, ...]  # in (0, 1), rising
    values: tuple[float, ...]

    @property
    def lowest(self) -> float:
        return min(self.values)

    def quantile(self, u: Floats) -> Floats:
        if min(self.values) <= 0:
            return np.interp(u, self.shares, self.values)
        return np.exp(np.interp(u, self.shares, np.log(self.values)))


def read_quantity(written: float | Mapping[str, Any], where: str, least: float, above: bool) -> Quantity:
    """From a file: a number, or a table of a distribution. No client may get less than `least` (or just that)."""
    quantity = _read(written, where)
    lowest = quantity.lowest
    if not math.isfinite(lowest) or lowest < least or (above and lowest <= least):
        bound = "above" if above else "at least"
        raise ConfigError(f"{where}: must be {bound} {least:g} for every client (got {lowest:g}). {_FORMS}")
    return quantity


_FORMS = (
    "Write a number, { median = 5.0, sigma = 0.5 } (lognormal), { low = 1.0, high = 9.0 } (uniform) or "
    "{ percentiles = [[10, 1.0], [50, 4.0], [90, 9.0]] }."
)


def _read(written: float | Mapping[str, Any], where: str) -> Quantity:
    if not isinstance(written, Mapping):
        return ConstantQuantity(float(written))
    keys = set(written)
    if keys == {"percentiles"}:
        return _percentiles(written["percentiles"], where)
    if keys not in ({"median", "sigma"}, {"low", "high"}) or not all(map(_is_number, written.values())):
        raise ConfigError(f"{where}: is no distribution (got {dict(written)}). {_FORMS}")
    if keys == {"low", "high"}:
        if written["low"] > written["high"]:
            raise ConfigError(f"{where}: low is above high (got {dict(written)}). Turn them round.")
        return UniformQuantity(float(written["low"]), float(written["high"]))
    if written["sigma"] < 0:
        raise ConfigError(
            f"{where}.sigma: must be at least 0 (got {written['sigma']:g}). For no spread write a number."
        )
    return LogNormalQuantity(float(written["median"]), float(written["sigma"]))


def _percentiles(points: Any, where: str) -> PercentileTable:
    pairs = isinstance(points, Sequence) and all(isinstance(p, Sequence) and len(p) == 2 for p in points)
    if not pairs or not points or not all(_is_number(x) for p in points for x in p):
        raise ConfigError(f"{where}.percentiles: must be a list of pairs [percent, value] (got {points!r}). {_FORMS}")
    shares, values = zip(*points, strict=True)
    rising = all(a < b for a, b in pairwise(shares)) and list(values) == sorted(values)
    if not rising or not 0 < shares[0] <= shares[-1] < 100:
        raise ConfigError(f"{where}.percentiles: both must rise, percents between 0 and 100 (got {points!r}). {_FORMS}")
    return PercentileTable(tuple(s / 100 for s in shares), tuple(map(float, values)))


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)
