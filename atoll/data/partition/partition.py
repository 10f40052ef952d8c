"""A partition: who holds which rows."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll.errors import PartitionError
from atoll.rng import host

_CLIENTS = 1 << 16  # whose rows are compared at a time


@dataclass(frozen=True, eq=False)
class Partition:
    """Rows of a data set by client, as two columns: client c holds `indices[offsets[c] : offsets[c + 1]]`.

    >>> p = Partition.from_lists([[0, 2], [1]])
    >>> p.size, p.sizes.tolist(), p.of(0).tolist()
    (2, [2, 1], [0, 2])
    """

    offsets: Tensor  # int64 (N + 1,)
    indices: Tensor  # int64
    provenance: str = "given"  # how it was made
    left_out: int = 0  # rows of the data that no client holds
    noise: Tensor | None = None  # the standard deviation of the noise on each client's inputs, float64 (N,)
    fresh: bool = False  # is that noise drawn at every access, instead of once for every row?
    groups: Tensor | None = None  # the cluster of each client, int64 (N,)
    client_names: tuple[str, ...] = ()  # what they are called, where that is known; no part of the digest

    def __post_init__(self) -> None:
        o = self.offsets
        whole = o.dtype == torch.int64 and self.indices.dtype == torch.int64
        if not whole or o.ndim != 1 or self.indices.ndim != 1 or len(o) < 2:
            raise PartitionError("partition: needs int64 offsets (N + 1,) and int64 indices. Use Partition.from_lists.")
        if int(o[0]) != 0 or int(o[-1]) != len(self.indices) or bool((o[1:] < o[:-1]).any()):
            raise PartitionError(
                "partition: offsets must rise from 0 to the number of indices. Use Partition.from_lists."
            )
        for name, column in (("noise", self.noise), ("groups", self.groups)):
            if column is not None and column.shape != (self.size,):
                raise PartitionError(f"partition: {name} has shape {tuple(column.shape)}. Give one for each client.")

        if self.client_names and len(self.client_names) != self.size:
            names = f"{len(self.client_names)} names for {self.size} clients"
            raise PartitionError(f"partition: client_names has {names}. Give each one, or none.")

    @property
    def size(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Tensor:
        """The rows of each client, (N,)."""
        return self.offsets.diff()

    def sizes_of(self, clients: Tensor) -> Tensor:
        """The rows of each of these clients; nobody else is looked at."""
        return self.offsets[clients + 1] - self.offsets[clients]

    def of(self, client: int) -> Tensor:
        if not 0 <= client < self.size:
            raise PartitionError(f"partition: there is no client {client}. Clients are 0..{self.size - 1}.")
        return self.indices[int(self.offsets[client]) : int(self.offsets[client + 1])]

    def owners(self) -> Tensor:
        """The client of each entry of `indices`."""
        return torch.arange(self.size).repeat_interleave(self.sizes)

    def check(self, examples: int | None = None, overlap: bool = False) -> Partition:
        """This partition, or a PartitionError; `overlap` lets two clients hold the same row."""
        empty = (self.sizes == 0).nonzero()[:, 0]
        if len(empty):
            raise PartitionError(
                f"partition: {_name(empty)} would have no examples. "
                "Use fewer clients, a larger partition.alpha or partition.minimum, or merge them."
            )
        low, high = int(self.indices.min()), int(self.indices.max())
        if low < 0 or (examples is not None and high >= examples):
            allowed = "0 or more" if examples is None else f"0..{examples - 1}"
            raise PartitionError(f"partition: row {low if low < 0 else high} does not exist. Rows are {allowed}.")
        held = torch.bincount(self.indices)
        if int(held.max()) > 1:
            self._check_repeats(held, overlap)
        return self

    def _check_repeats(self, held: Tensor, overlap: bool) -> None:
        for first in range(0, self.size, _CLIENTS):
            few = self.offsets[first : first + _CLIENTS + 1]
            owners = torch.arange(len(few) - 1).repeat_interleave(few.diff())
            pairs = (owners * len(held) + self.indices[int(few[0]) : int(few[-1])]).sort().values
            twice = pairs[1:][pairs[1:] == pairs[:-1]]
            if len(twice):
                client, row = divmod(int(twice[0]), len(held))
                raise PartitionError(f"partition: client {first + client} holds row {row} twice. List every row once.")
        if not overlap:
            row = int((held > 1).nonzero()[0, 0])
            clients = self.owners()[self.indices == row]
            raise PartitionError(
                f"partition: row {row} is held by {_name(clients)}. If that is meant, pass overlap=True."
            )

    @classmethod
    def from_lists(
        cls, lists: Sequence[Any], examples: int | None = None, overlap: bool = False, provenance: str = "given"
    ) -> Partition:
        """One list, array or tensor of rows for each client."""
        if not len(lists):
            raise PartitionError("partition: no clients. Give at least one list of rows.")
        rows = [np.asarray(x, dtype=np.int64).reshape(-1) for x in lists]
        indices = torch.from_numpy(np.concatenate(rows))
        left_out = 0 if examples is None else examples - len(torch.unique(indices))
        sizes = np.fromiter(map(len, rows), np.int64, len(rows))
        return cls(_offsets(sizes), indices, provenance, left_out).check(examples, overlap)

    def split(self, share: float, key: Tensor) -> tuple[Partition, Partition]:
        """The same clients with `share` of every client's rows held out: (rest, held out).

        Of two rows or more at least one goes to each side; a client with one row keeps it and holds out none.
        Addressed by (key, client), so one client's split does not depend on the others. Rows keep their order.
        """
        if not 0 < share < 1:
            raise PartitionError(
                f"partition.split: the share must be between 0 and 1 (got {share}). To hold out nothing, do not split."
            )
        sizes = self.sizes.numpy()
        held = np.where(sizes < 2, 0, np.clip(np.rint(share * sizes).astype(np.int64), 1, np.maximum(sizes - 1, 1)))
        starts = np.repeat(self.offsets[:-1].numpy(), sizes)
        shuffled = host.order(key[None], np.arange(self.size), sizes)[0] + starts
        chosen = np.zeros(len(self.indices), bool)
        chosen[shuffled[np.arange(len(shuffled)) - starts < np.repeat(held, sizes)]] = True
        out = torch.from_numpy(chosen)
        provenance = f"{self.provenance} split({share}, key={key.tolist()})"
        return self._part(sizes - held, ~out, f"{provenance} rest"), self._part(held, out, f"{provenance} held out")

    def _part(self, sizes: np.ndarray[Any, np.dtype[np.int64]], chosen: Tensor, provenance: str) -> Partition:
        left_out = self.left_out + int((~chosen).sum())
        return replace(
            self, offsets=_offsets(sizes), indices=self.indices[chosen], provenance=provenance, left_out=left_out
        )

    def pool(self) -> Partition:
        """One client that holds every row that somebody holds."""
        rows = torch.unique(self.indices)
        return Partition(torch.tensor([0, len(rows)]), rows, f"{self.provenance} pooled", self.left_out)

    def digest(self) -> str:
        """A short fingerprint of who holds what, with which noise, in which group, and of how it was made."""
        h = hashlib.blake2b(self.provenance.encode(), digest_size=16)
        for column in (self.offsets, self.indices):
            h.update(len(column).to_bytes(8, "little") + column.numpy().astype("<i8").tobytes())
        if self.noise is not None:
            h.update(b"fresh noise" if self.fresh else b"noise")
            h.update(self.noise.numpy().astype("<f8").tobytes())
        if self.groups is not None:
            h.update(b"groups" + self.groups.numpy().astype("<i8").tobytes())
        return h.hexdigest()

    def save(self, path: str | Path) -> None:
        """Write an .npz, whole or not at all."""
        path = Path(path)
        half = path.with_name(f".{path.name}.{os.getpid()}")
        columns = {"offsets": self.offsets, "indices": self.indices, "noise": self.noise, "groups": self.groups}
        arrays: Any = {name: column.numpy() for name, column in columns.items() if column is not None}
        # "made": as files have called it from the first version on
        arrays |= {
            "made": np.array(self.provenance),
            "left_out": np.array(self.left_out),
            "fresh": np.array(self.fresh),
        }
        if self.client_names:
            arrays["client_names"] = np.array(self.client_names)
        try:
            with half.open("wb") as f:
                np.savez(f, **arrays)
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path) -> Partition:
        """Read what `save` wrote. Never unpickles."""
        try:
            with np.load(path, allow_pickle=False) as f:
                columns = {k: torch.from_numpy(f[k]) for k in ("offsets", "indices", "noise", "groups") if k in f.files}
                fresh = "fresh" in f.files and bool(f["fresh"])
                names = tuple(f["client_names"].tolist()) if "client_names" in f.files else ()
                left_out = int(f["left_out"])
                return cls(**columns, provenance=str(f["made"]), left_out=left_out, fresh=fresh, client_names=names)
        except FileNotFoundError:
            raise PartitionError(f"partition: there is no file {path}. Write one with Partition.save.") from None
        except (OSError, KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as e:
            if isinstance(e, PartitionError):
                raise
            raise PartitionError(
                f"partition: {path} is not a saved partition ({e}). Write one with Partition.save."
            ) from e


def _offsets(sizes: np.ndarray[Any, np.dtype[np.int64]]) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]))


def _name(clients: Tensor) -> str:
    """The clients in words: the first five."""
    first = ", ".join(map(str, clients[:5].tolist()))
    more = f" and {len(clients) - 5} more" if len(clients) > 5 else ""
    return f"client{'s' if len(clients) > 1 else ''} {first}{more}"
