"""Measuring: columns of statistics, one row per example, for one model or for one model per client."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from atoll import tree
from atoll.core import Model, Task, functional
from atoll.engines.program import Decode, batch_of
from atoll.tree import Tree

Columns = dict[str, NDArray[np.float64]]


def measure(task: Task, decode: Decode, columns: Tree, model: Model, rows: Tensor | None, batch: int) -> Columns:
    """One model on some rows of the data (None: all), a batch at a time."""
    device = tree.leaves(model["params"])[0].device
    n = len(columns["y"]) if rows is None else len(rows)
    rows = torch.arange(n) if rows is None else rows
    found = []
    with torch.no_grad():
        for part in torch.split(rows.to(device), batch):  # type: ignore[no-untyped-call]
            found.append(_measured(task, decode, columns, model, part, torch.tensor(len(part), device=device)))
    return _arrays(found, torch.ones(n, dtype=torch.bool))


def measure_each(
    task: Task, decode: Decode, columns: Tree, models: Model, plan: Tensor, count: Tensor, stacked: bool
) -> tuple[Columns, NDArray[np.int64]]:
    """Model c of the stack on the rows plan[c]; also which client each measured row belongs to."""
    device = tree.leaves(models["params"])[0].device
    clients, steps, width = plan.shape
    real = torch.arange(width) < count[..., None]

    def one(model: Model, rows: Tensor, n: Tensor) -> Tree:
        return _measured(task, decode, columns, model, rows, n)

    found = []
    with torch.no_grad():
        for s in range(steps):
            rows, n = plan[:, s].to(device), count[:, s].to(device)
            if stacked:
                with functional():
                    found.append(vmap(one)(models, rows, n))
            else:
                each = [one(tree.rows(models, c), rows[c], n[c]) for c in range(clients)]
                found.append(tree.map(lambda *xs: torch.stack(xs), *each))
    flat = [tree.map(lambda x: x.reshape(-1), f) for f in found]
    owner = torch.arange(clients)[:, None].expand(clients, width)
    keep = torch.cat([real[:, s].reshape(-1) for s in range(steps)])
    return _arrays(flat, keep), np.concatenate([owner.reshape(-1).numpy()] * steps)[keep.numpy()]


def _measured(task: Task, decode: Decode, columns: Tree, model: Model, rows: Tensor, n: Tensor) -> Tree:
    key = torch.zeros(2, dtype=torch.int64, device=rows.device)
    return task.measure(model["params"], model["buffers"], batch_of(decode, columns, rows, n, key))


def _arrays(found: list[Any], keep: Tensor) -> Columns:
    """To the host in one piece."""
    joined = tree.cat(found)
    whole = torch.stack([v.double() for v in joined.values()]).cpu().numpy()
    return dict(zip(joined, whole if bool(keep.all()) else whole[:, keep.numpy()], strict=True))
