"""How unlike the clients of a run are, from what its run.json says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from atoll.data.measures import effective_classes, emd, jensen_shannon, size_gini, total_variation


def skew(info: Mapping[str, Any]) -> dict[str, float]:
    """Measures of labels and sizes (`atoll.data.measures`), and the level of feature noise.

    >>> found = skew({"label_counts": [[2, 0], [0, 2]], "experiment": {"partition": {"name": "noise", "level": 0.1}}})
    >>> found["emd"], found["size_gini"], found["effective_classes"], found["noise"]
    (1.0, 0.0, 1.0, 0.1)
    """
    found: dict[str, float] = {}
    if info.get("label_counts"):
        counts = np.asarray(info["label_counts"], dtype=np.int64)
        found |= {
            "emd": emd(counts),
            "jensen_shannon": jensen_shannon(counts),
            "total_variation": total_variation(counts),
            "effective_classes": effective_classes(counts),
            "classes": float((counts.sum(0) > 0).sum()),
            "size_gini": size_gini(torch.from_numpy(counts.sum(1))),
        }
    clients = info.get("partition", {}).get("clients")
    found |= {} if clients is None else {"clients": float(clients)}
    level = _noise(info.get("experiment", {}).get("partition"))
    return found | ({} if level is None else {"noise": level})


def _noise(partition: Any) -> float | None:
    """The level of feature noise of a partition, or of those that it is composed of."""
    if isinstance(partition, list):
        return next((level for p in partition if (level := _noise(p)) is not None), None)
    if not isinstance(partition, Mapping):
        return None
    return float(partition["level"]) if partition.get("name") == "noise" else _noise(partition.get("of"))
