"""Does a partitioner deal out every row once?"""

from __future__ import annotations

import torch

from atoll import rng
from atoll.data import Partition, Partitioner
from atoll.testing.assertions import need

_ROWS = 240


def check_partition(partitioner: Partitioner, *, random: bool | None = True, examples: int = _ROWS) -> list[str]:
    """The names of the checks that a partitioner passes, or a ConformanceError that says which one it does not.

    It is tried on `examples` rows of eight classes, twelve natural clients ("user") and eight octants of a cube.
    `random=False`: it does not draw, so that another key gives the same clients; None: it may draw or not.

    >>> from atoll.data.partition import Iid
    >>> check_partition(Iid(clients=5))[0]
    'no row is held twice'
    """
    labels = rng.bits(rng.key("labels"), (examples,)) % 8
    keys = {k: rng.bits(rng.key(k), (examples,)) % n for k, n in (("user", 12), ("octant", 8))}

    def made(seed: int) -> Partition:
        return partitioner(labels, keys, examples, rng.key("partition", seed))

    for seed in range(3):
        _deals_out(made(seed), examples)
    names = ["no row is held twice", "no row is lost", "nobody has nothing"]
    cause = "torch.randperm or numpy's global generator; draw from the key instead"
    need(_same(made(0), made(0)), "same key, same clients", "another partition", "the same one", cause)
    other = _same(made(0), made(1))
    if random is None and other:
        return [*names, "same key, same clients", "draws nothing: every seed has the same clients"]
    if random is not False:
        need(not other, "another key, other clients", "the same partition", "another one", "a key that is not used")
        return [*names, "same key, same clients", "another key, other clients"]
    need(other, "draws nothing", "another partition for another key", "the same one", "random=False is wrong")
    return [*names, "same key, same clients"]


def _deals_out(found: Partition, examples: int) -> None:
    rows = found.indices
    twice = len(rows) - len(torch.unique(rows))
    need(twice == 0, "no row is held twice", f"{twice} rows more than once", "each row once", "shares that overlap")
    inside = bool((rows >= 0).all()) and bool((rows < examples).all())
    extremes = f"{int(rows.min())} to {int(rows.max())}"
    need(inside, "rows exist", extremes, f"0 to {examples - 1}", "an index that is off by one")
    cause = "rounding of shares; give what is left to the last client, or count it in left_out"
    held = len(rows) + found.left_out
    need(held == examples, "no row is lost", f"{held} held or left out", examples, cause)
    fewest = int(found.sizes.min())
    need(fewest > 0, "nobody has nothing", fewest, "at least 1", "a draw that is not repeated")


def _same(a: Partition, b: Partition) -> bool:
    return torch.equal(a.offsets, b.offsets) and torch.equal(a.indices, b.indices)
