"""A partition whose clients hold a few of their examples: what attacks by number of images are made on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from atoll import rng
from atoll.data import PARTITIONS, Partition
from atoll.experiment import Experiment, build

NAME = "atoll.attacks.leakage.few_examples:FewExamples"


@dataclass(frozen=True)
class FewExamples:
    """Another partition, of which every client keeps `images` examples, drawn at random; who has fewer keeps all."""

    of: dict[str, Any]
    images: Annotated[int, Field(ge=1)]

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        whole: Partition = build(PARTITIONS, self.of, where="partition.of")(labels, keys, examples, key)
        return self.cut(whole, rng.fold_name(key, "few examples"))

    def cut(self, whole: Partition, key: Tensor) -> Partition:
        """By rank among random numbers, one for each entry: the first so many of each client, in their old order."""
        owner, sizes = whole.owners(), whole.sizes
        order = np.lexsort([rng.uniform(key, (len(owner),)).numpy(), owner.numpy()])
        rank = torch.empty(len(owner), dtype=torch.int64)
        rank[torch.from_numpy(order)] = torch.arange(len(owner)) - whole.offsets[:-1].repeat_interleave(sizes)
        kept = rank < self.images
        return replace(
            whole,
            offsets=torch.cat([torch.zeros(1, dtype=torch.int64), sizes.clamp(max=self.images).cumsum(0)]),
            indices=whole.indices[kept],
            provenance=f"{whole.provenance} cut to {self.images}",
            left_out=whole.left_out + int((~kept).sum()),
        )


def with_images(experiment: Experiment, partition: dict[str, Any], images: int) -> Experiment:
    """The same experiment, whose clients hold so many of the examples that this partition gives them."""
    raw = experiment.complete()
    raw["partition"] = {"name": NAME, "of": partition, "images": images}
    raw["evaluate"] = {**raw["evaluate"], "holdout": 0.0}
    return Experiment.parse(raw)
