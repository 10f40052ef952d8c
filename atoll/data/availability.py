"""Clients that come and go: a trace says who can be reached in which round."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from atoll.core import Participation
from atoll.errors import ConfigError
from atoll.rng import host

_RARE = 64  # of so many clients one is available, or fewer: a look at everybody is cheaper than trying


@dataclass(frozen=True, eq=False)
class Available:
    """Some of the clients that the trace has available in the round; rounds beyond the trace wrap around.

    A cohort is drawn by trying: clients in random order until enough are available. Nobody else's entry is read.
    """

    trace: Tensor  # bool (rounds, N)
    size: int | None = None

    @cached_property
    def counts(self) -> Tensor:
        """How many are available in each round of the trace."""
        return self.trace.sum(1)

    def check(self, population: int) -> None:
        if self.trace.shape[1] != population:
            raise ConfigError(
                f"cohort.trace: has {self.trace.shape[1]} clients, the population {population}. "
                "Use one row for each client and one column for each round."
            )

    def sample(self, population: int, round: int, key: Tensor) -> tuple[Tensor, Participation]:
        at = round % len(self.trace)
        return self._drawn(self.trace[at], int(self.counts[at]), host.fold(key, round)), Participation(
            "available", population
        )

    def _drawn(self, here: Tensor, count: int, key: Tensor) -> Tensor:
        if self.size is None or count <= self.size:
            return here.nonzero()[:, 0]
        if self.size * 4 > count or count * _RARE < len(here):
            return here.nonzero()[:, 0][torch.from_numpy(host.distinct(key, count, self.size))]
        tries = 2 * self.size * len(here) // count + 16
        while True:
            tried = torch.from_numpy(host.distinct(key, len(here), min(tries, len(here))))
            ids = tried[here[tried]]
            if len(ids) >= self.size:
                return ids[: self.size]
            tries *= 2


def available(trace: str | list[list[int | bool]], size: Annotated[int, Field(ge=1)] | None = None) -> Available:
    """Clients that a trace has available: `size` of them, or all.

    The trace is 1 or 0 for each client (row) and round (column): a nested list, or the path of a .npy or .csv file.
    Fewer available than `size`: all of them, which may be none.
    """
    table = _read(Path(trace)) if isinstance(trace, str) else _table(trace)
    if table.ndim != 2 or 0 in table.shape:
        raise ConfigError(
            f"cohort.trace: has shape {table.shape}. Use one row for each client, one column for each round."
        )
    if table.dtype.kind not in "biuf" or not np.isin(table, (0, 1)).all():
        raise ConfigError("cohort.trace: holds something other than 0 and 1. Use 1 for available and 0 for not.")
    return Available(torch.from_numpy(np.ascontiguousarray(table.T.astype(bool))), size)


def _table(rows: list[list[int | bool]]) -> np.ndarray:
    if len({len(row) for row in rows}) > 1:
        raise ConfigError("cohort.trace: the rows differ in length. Give every client the same number of rounds.")
    return np.array(rows)


def _read(path: Path) -> np.ndarray:
    try:
        if path.suffix == ".npy":
            return np.asarray(np.load(path, allow_pickle=False))
        if path.suffix == ".csv":
            return np.loadtxt(path, delimiter=",", ndmin=2)
    except FileNotFoundError:
        raise ConfigError(f"cohort.trace: there is no file {path}. Give the path of a .npy or .csv file.") from None
    except Exception as e:  # a file that is something else can make numpy raise anything
        raise ConfigError(f"cohort.trace: {path} cannot be read ({e}). Use a plain array of 0 and 1.") from e
    raise ConfigError(f"cohort.trace: {path} is neither .npy nor .csv. Save the table as one of these.")
