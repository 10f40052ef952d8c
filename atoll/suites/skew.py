"""How unlike clients are, in the numbers that a results.json carries for every cell (`Cell.skew`).

emd, jensen_shannon   of the clients' label shares from those of all (atoll.data.measures): 0..2 and 0..1
effective_classes     as many classes, held evenly, would have a client's label entropy, in the mean
classes               that anybody holds
size_gini             inequality of the clients' sizes: 0..1
clients               how many there are
noise                 the level of feature noise; left out where there is none

A number that has no meaning (labels of a regression) is left out too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from atoll.data import Dataset, Partition
from atoll.data.measures import effective_classes, emd, jensen_shannon, label_counts, size_gini


def skew_of(dataset: Dataset, partition: Partition, entry: Mapping[str, Any] | None = None) -> dict[str, float]:
    """How unlike the clients of this partition are; `entry` is the table that it was made from.

    >>> data = Dataset.from_arrays(np.zeros((4, 2), np.float32), np.array([0, 0, 1, 1]))
    >>> measures = skew_of(data, Partition.from_lists([[0, 1], [2, 3]]))
    >>> measures["emd"], measures["effective_classes"], measures["clients"]
    (1.0, 1.0, 2.0)
    """
    measures = {"size_gini": size_gini(partition.sizes), "clients": float(partition.size)}
    if partition.noise is not None:
        measures["noise"] = _level(entry) or float(partition.noise.max()) ** 2
    if dataset.labels is None:
        return measures
    return {**_labels(label_counts(partition, dataset.labels).numpy()), **measures}


def skew(info: Mapping[str, Any]) -> dict[str, float]:
    """The same of a run, from what its run.json says: what of it can be known.

    >>> partition = {"name": "noise", "level": 0.1}
    >>> measures = skew({"label_counts": [[2, 0], [0, 2]], "experiment": {"partition": partition}})
    >>> measures["emd"], measures["size_gini"], measures["effective_classes"], measures["noise"]
    (1.0, 0.0, 1.0, 0.1)
    """
    measures: dict[str, float] = {}
    if info.get("label_counts"):
        counts = np.asarray(info["label_counts"], dtype=np.int64)
        measures |= {**_labels(counts), "size_gini": size_gini(torch.from_numpy(counts.sum(1)))}
    clients = info.get("partition", {}).get("clients")
    measures |= {} if clients is None else {"clients": float(clients)}
    level = _level(info.get("experiment", {}).get("partition"))
    return measures | ({} if level is None else {"noise": level})


def _labels(counts: NDArray[np.int64]) -> dict[str, float]:
    return {
        "emd": emd(counts),
        "jensen_shannon": jensen_shannon(counts),
        "effective_classes": effective_classes(counts),
        "classes": float((counts.sum(0) > 0).sum()),
    }


def _level(entry: Any) -> float | None:
    """The level of noise that a partition's table says, its own or that of one inside of it."""
    if isinstance(entry, list):
        return next((level for inner in entry if (level := _level(inner)) is not None), None)
    if not isinstance(entry, Mapping):
        return None
    return float(entry["level"]) if entry.get("name") == "noise" and "level" in entry else _level(entry.get("of"))
