"""Vertical federated learning: who holds which columns, and of which rows."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from atoll.data.partition import assign
from atoll.data.partition.partition import Partition
from atoll.errors import PartitionError
from atoll.rng import host


@dataclass(frozen=True, eq=False)
class VerticalPartition:
    """Columns and rows by party: party p holds `columns.of(p)` of the rows `rows.of(p)`; one party has the labels.

    >>> v = VerticalPartition.from_lists([[0, 2], [1]], [[0, 1, 2], [1, 2, 3]])
    >>> v.parties, v.aligned().tolist()
    (2, [1, 2])
    """

    columns: Partition
    rows: Partition
    labels_at: int = 0
    provenance: str = "given"

    def __post_init__(self) -> None:
        if self.columns.size != self.rows.size:
            raise PartitionError(
                f"vertical: columns for {self.columns.size} parties and rows for {self.rows.size}. "
                "Give both for each party."
            )
        if not 0 <= self.labels_at < self.parties:
            raise PartitionError(f"vertical: there is no party {self.labels_at}. Parties are 0..{self.parties - 1}.")

    @property
    def parties(self) -> int:
        return self.columns.size

    def aligned(self) -> Tensor:
        """The rows that all parties hold, rising: what can be trained on together."""
        return (torch.bincount(self.rows.indices) == self.parties).nonzero()[:, 0]

    @classmethod
    def from_lists(cls, columns: Sequence[Any], rows: Sequence[Any], labels_at: int = 0) -> VerticalPartition:
        """One list of columns and one of rows for each party; parties may share rows, but no column."""
        return cls(Partition.from_lists(columns), Partition.from_lists(rows, overlap=True), labels_at)

    def digest(self) -> str:
        """A short fingerprint of who holds what and of how it was made."""
        content = f"{self.provenance} {self.labels_at} {self.columns.digest()} {self.rows.digest()}"
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write an .npz, whole or not at all."""
        path = Path(path)
        half = path.with_name(f".{path.name}.{os.getpid()}")
        parts = {"columns": self.columns, "rows": self.rows}
        arrays: Any = {f"{n}_{k}": getattr(p, k).numpy() for n, p in parts.items() for k in ("offsets", "indices")}
        try:
            with half.open("wb") as f:
                np.savez(f, made=np.array(self.provenance), labels_at=np.array(self.labels_at), **arrays)
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path) -> VerticalPartition:
        """Read what `save` wrote. Never unpickles."""
        try:
            with np.load(path, allow_pickle=False) as f:
                arrays = {name: torch.from_numpy(f[name]) for name in f.files if f[name].ndim}
                columns = Partition(arrays["columns_offsets"], arrays["columns_indices"])
                rows = Partition(arrays["rows_offsets"], arrays["rows_indices"])
                return cls(columns, rows, int(f["labels_at"]), str(f["made"]))
        except FileNotFoundError:
            raise PartitionError(f"vertical: there is no file {path}. Write one with VerticalPartition.save.") from None
        except (OSError, KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as e:
            raise PartitionError(f"vertical: {path} is not a saved vertical partition ({e}).") from e


@dataclass(frozen=True)
class Vertical:
    """Columns cut among parties, and a share of the rows that all parties hold.

    `shares`: of the columns, one for each party (even if left out); columns at random, or in order with
    `shuffle = false`. `overlap` of the rows, at random, are held by all; of the others each by one party, evenly.
    Party 0 has the labels. OARF (2022), https://arxiv.org/abs/2006.07856, joins two film sources in this way.
    """

    parties: Annotated[int, Field(ge=2)] = 2
    overlap: Annotated[float, Field(gt=0, le=1)] = 1.0
    shares: tuple[Annotated[float, Field(gt=0)], ...] | None = None
    shuffle: bool = True

    def __call__(self, features: int, examples: int, key: Tensor) -> VerticalPartition:
        provenance = f"{self!r} key={key.tolist()}"
        return VerticalPartition(
            self._columns(features, host.fold(key, 0)), self._rows(examples, host.fold(key, 1)), 0, provenance
        )

    def _columns(self, features: int, key: Tensor) -> Partition:
        shares = np.asarray(self.shares or (1.0,) * self.parties)
        if len(shares) != self.parties:
            raise PartitionError(
                f"vertical.shares: {len(shares)} shares for {self.parties} parties. Give one for each."
            )
        if features < self.parties:
            raise PartitionError(
                f"vertical.parties: {self.parties} parties for {features} columns. Use at most {features}."
            )
        sizes = (
            1 + assign.counts_by_running_floor((shares / shares.sum())[None], np.array([features - self.parties]))[0]
        )
        order = host.permutation(key, features) if self.shuffle else np.arange(features)
        return Partition.from_lists([np.sort(part) for part in np.split(order, np.cumsum(sizes)[:-1])], features)

    def _rows(self, examples: int, key: Tensor) -> Partition:
        order = host.permutation(key, examples)
        common = round(self.overlap * examples)
        if common == 0:
            raise PartitionError(
                f"vertical.overlap: {self.overlap:g} of {examples} examples is no row in common. Use a larger overlap."
            )
        own = np.split(order[common:], np.cumsum(assign.even_sizes(examples - common, self.parties))[:-1])
        lists = [np.sort(np.concatenate([order[:common], part])) for part in own]
        return Partition.from_lists(lists, examples, overlap=True)
