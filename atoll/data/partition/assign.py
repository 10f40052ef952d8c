"""From "who gets how many of what" to a partition; shared by the files beside this one."""

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.data.partition.partition import Partition
from atoll.errors import PartitionError
from atoll.rng import host

Ints = NDArray[np.int64]


class Partitioner(Protocol):
    """What every entry of PARTITIONS builds: labels (if any), natural keys, the number of rows and a key in."""

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition: ...


def classes_of(labels: Tensor | None, name: str) -> Ints:
    """The class of each row, numbered 0..K-1 over the classes that occur."""
    if labels is None:
        raise PartitionError(
            f"partition.name = {name!r}: splits by class, and this data has no classes. "
            "Use 'iid', 'quantity_dirichlet', or 'natural' where the data has keys."
        )
    return np.unique(labels.numpy(), return_inverse=True)[1].astype(np.int64)


def check_enough_rows(clients: int, minimum: int, examples: int) -> None:
    if clients * minimum > examples:
        what = f"{clients} clients of at least {minimum} need {clients * minimum} examples, and there are {examples}"
        raise PartitionError(f"partition.clients: {what}. Use at most {examples // minimum} clients.")


def even_sizes(total: Ints | int, parts: int) -> Ints:
    """Sizes of `parts` nearly even parts, the first ones larger, for each total: (..., parts)."""
    whole = np.asarray(total)[..., None]
    return np.asarray(whole // parts + (np.arange(parts) < whole % parts), dtype=np.int64)


def shares(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shares along the last axis from the logarithms of what they are proportional to (-inf: none)."""
    weights = np.exp(logs - logs.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def counts_by_running_floor(shares: NDArray[np.float64], totals: Ints) -> Ints:
    """Whole numbers from shares (K, N) of totals (K,), as NIID-Bench's code has them: floors of the running sum.

    What is cut off anywhere falls to the last client, who so holds a stray row of nearly every class.
    """
    running = np.cumsum(shares, -1)
    running[running > 1 - 1e-12] = 1.0  # or a client at the end with no share would get a row by rounding
    cuts = np.floor(running * totals[:, None]).astype(np.int64)
    cuts[:, -1] = totals
    return np.diff(cuts, axis=-1, prepend=0)


def counts_by_largest_remainder(shares: NDArray[np.float64], totals: Ints) -> Ints:
    """Whole numbers from shares (K, N) of totals (K,): floors, and one more where the most was cut off.

    No place is favoured, so that clients whose shares are exchangeable have exchangeable counts.

    >>> counts_by_largest_remainder(np.array([[0.35, 0.05, 0.6]]), np.array([10])).tolist()
    [[4, 0, 6]]
    """
    exact = shares * totals[:, None]
    counts = np.floor(exact).astype(np.int64)
    left = totals - counts.sum(-1)
    places = np.argsort(np.argsort(counts - exact, axis=-1, kind="stable"), axis=-1)
    return np.asarray(counts + (places < left[:, None]), np.int64)


def owners_by_counts(counts: Ints, classes: Ints, key: Tensor) -> Ints:
    """The owner of each row when client c gets counts[k, c] random rows of class k; -1 for rows left over."""
    order = host.order(key[None], np.arange(len(counts)), np.bincount(classes, minlength=len(counts)))[0]
    by_class = np.argsort(classes, kind="stable")
    totals = np.bincount(classes, minlength=len(counts))
    shuffled = by_class[order + np.repeat(np.cumsum(totals) - totals, totals)]
    left = totals - counts.sum(1)
    everyone = np.tile(np.append(np.arange(counts.shape[1]), -1), len(counts))
    owner = np.empty(len(classes), np.int64)
    owner[shuffled] = np.repeat(everyone, np.append(counts, left[:, None], axis=1).reshape(-1))
    return owner


def random_partition(sizes: Ints, examples: int, key: Tensor, provenance: str) -> Partition:
    """The partition in which client c gets sizes[c] rows at random; what remains is left out."""
    owner = np.full(examples, -1)
    owner[: int(sizes.sum())] = np.repeat(np.arange(len(sizes)), sizes)
    return partition_of_rows(host.permutation(key, examples), owner, len(sizes), f"{provenance} key={key.tolist()}")


def partition_by_owner(owner: Ints, clients: int, key: Tensor, provenance: str) -> Partition:
    """The partition in which row i belongs to owner[i] (nobody: -1), every client's rows in random order.

    Random, because the rows of a client may be read unshuffled, and data files are often sorted by class.
    """
    shuffled = host.permutation(key, len(owner))
    return partition_of_rows(shuffled, owner[shuffled], clients, f"{provenance} key={key.tolist()}")


def partition_of_rows(rows: Ints, owner: Ints, clients: int, provenance: str) -> Partition:
    """The partition in which rows[i] belongs to owner[i] (nobody: -1), every client's rows in the order given."""
    owned = owner >= 0
    rows, owner, left_out = rows[owned], owner[owned], int((~owned).sum())
    narrow = owner.astype(np.uint16 if clients <= 1 << 16 else np.int64)  # 16 bits are sorted by radix
    sizes = np.bincount(owner, minlength=clients)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]))
    indices = torch.from_numpy(rows[np.argsort(narrow, kind="stable")])
    return Partition(offsets, indices, provenance, left_out).check(len(owned))


def borrow_rows(owner: Ints, clients: int, minimum: int, key: Tensor) -> Ints:
    """Random rows of the largest clients go to those below the minimum: the least change that fills them."""
    sizes = np.bincount(owner, minlength=clients)
    need = np.maximum(minimum - sizes, 0)
    if not need.any():
        return owner
    give = np.maximum(sizes - _level(sizes, int(need.sum())), 0)
    spare = int(give.sum() - need.sum())
    give[np.flatnonzero(give)[:spare]] -= 1
    rows = np.argsort(owner, kind="stable")
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    shuffled = rows[host.order(key[None], np.arange(clients), sizes)[0] + starts]
    lent = shuffled[np.arange(len(rows)) - starts < np.repeat(give, sizes)]
    out = owner.copy()
    out[lent[host.permutation(host.fold(key, 0), len(lent))]] = np.repeat(np.arange(clients), need)
    return out


def _level(sizes: Ints, needed: int) -> int:
    """The highest level above which the clients together hold at least `needed` rows."""
    low, high = 0, int(sizes.max())
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.maximum(sizes - middle, 0).sum() >= needed else (low, middle - 1)
    return low
