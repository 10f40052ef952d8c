"""A partition's noise, put on the inputs of a data set."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.data.dataset import Dataset
from atoll.data.decode import Chained, Same
from atoll.data.partition.partition import Partition
from atoll.errors import PartitionError
from atoll.tree import Tree


@dataclass(frozen=True)
class AddNoise:
    """x + noise * z for rows that have a column "noise"; z is standard normal, addressed by the row.

    If `fresh`, also by the key of the batch, so that it is another one at every step; where nothing is trained that key
    is 0, and two models are measured on the same noise.
    """

    seed: tuple[int, int]  # numbers, not a tensor: a constant would be a copy to the device inside a captured graph
    fresh: bool

    def __call__(self, batch: Tree) -> Tree:
        if "noise" not in batch:
            return batch
        x, k0, k1 = batch["x"], *self.seed
        if self.fresh and "key" in batch:
            k0, k1 = k0 ^ batch["key"][0], k1 ^ batch["key"][1]
        z = rng.quick_normal((k0, k1), batch["row"], x[0].numel()).reshape(x.shape)
        scale = batch["noise"].reshape(-1, *[1] * (x.dim() - 1))
        rest = {name: column for name, column in batch.items() if name not in ("noise", "row")}
        return {**rest, "x": x + scale * z}


def noisy(dataset: Dataset, partition: Partition, key: Tensor) -> Dataset:
    """The data as the clients of this partition see it; the same data set if the partition has no noise.

    The rows get two more columns, "noise" and "row", that decoding reads and takes away. Noise comes before
    augmentation. A partition whose noise is fresh also has a noisy test set: a copy for each client.
    """
    if partition.noise is None:
        return dataset
    if not dataset.decode(tree.rows(dataset.train, slice(0, 1)))["x"].is_floating_point():
        raise PartitionError(
            f"partition: noise needs inputs that are numbers, and those of {dataset.name!r} are tokens. Leave it out."
        )
    level = torch.zeros(dataset.examples)
    level[partition.indices] = partition.noise.float()[partition.owners()]
    first, second = key.tolist()
    return replace(
        dataset,
        train={**dataset.train, "noise": level, "row": torch.arange(dataset.examples, dtype=torch.int32)},
        test=_copies(dataset.test, partition.noise, dataset.examples) if partition.fresh else dataset.test,
        decode=Chained(dataset.decode, AddNoise((first, second), partition.fresh)),
        augment=dataset.augment or Same() if partition.fresh else dataset.augment,  # to augment is to be given a key
    )


def _copies(test: Tree | None, noise: Tensor, start: int) -> Tree | None:
    """The test set once for each client, with that client's noise; rows are numbered from `start`."""
    if test is None:
        return None
    n, copies = len(test["y"]), len(noise)
    seen = tree.rows(test, torch.arange(n).repeat(copies))
    row = start + torch.arange(n * copies, dtype=torch.int32)
    return {**seen, "noise": noise.float().repeat_interleave(n), "row": row}
