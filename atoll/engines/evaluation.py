"""Measuring: columns of statistics, one row per example, for one model or one per client; and their metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from atoll import tree
from atoll.core import Evaluate, Evaluated, Model, Task, Train, Trained, functional
from atoll.engines.device_data import Decode, EvaluationData
from atoll.engines.program import batch_of
from atoll.tree import Tree

Columns = dict[str, NDArray[np.float64]]
Owners = NDArray[np.int64]
Models = Callable[[Train], tuple[Tree, Trained]]


@dataclass(frozen=True, eq=False)
class Measurement:
    """One model on some rows: what `measure` takes, and to whom each row belongs."""

    columns: Tree
    model: Model
    rows: Tensor
    owner: Owners
    groups: int
    together: bool = False


def measurement(data: EvaluationData, request: Evaluate) -> Measurement:
    """The rows that a request for one model asks for."""
    assert request.model is not None
    if request.on != "own":
        columns, rows = _common_rows(data, request.on)
        return Measurement(columns, request.model, rows, np.zeros(len(rows), np.int64), 1, request.together)
    cohort = data.own_rows(request.ids)
    real = torch.arange(cohort.plan.shape[2]) < cohort.count[..., None]
    owner = torch.arange(len(request.ids))[:, None, None].expand(cohort.plan.shape)[real]
    own = data.columns, request.model, cohort.plan[real], owner.numpy(), len(request.ids)
    return Measurement(*own, request.together)


def evaluate(data: EvaluationData | None, request: Evaluate, models: Models, stacked: bool) -> Evaluated:
    """Metrics of one model, or of each client's own."""
    assert data is not None, "an engine without data to measure on was asked for metrics"
    if request.model is None:
        return evaluate_own(data, request, models, stacked)
    asked = measurement(data, request)
    columns = measure_rows(data, asked, asked.rows)
    return metrics_by_group(data, columns, asked.owner, asked.groups)


def evaluate_own(data: EvaluationData, request: Evaluate, models: Models, stacked: bool) -> Evaluated:
    """Metrics of what each client itself predicts with, a block of clients at a time."""
    assert request.snapshot is not None
    return join_evaluated(
        [_block(data, request.on, part, models, stacked) for part in _blocks(request.snapshot, data.block)]
    )


def join_evaluated(parts: Sequence[Evaluated]) -> Evaluated:
    """Several groups of clients, one after the other."""
    if not parts:
        return Evaluated({}, np.zeros(0, np.bool_))
    metrics = {k: np.concatenate([p.metrics[k] for p in parts]) for k in parts[0].metrics}
    return Evaluated(metrics, np.concatenate([p.finite for p in parts]))


def metrics_by_group(data: EvaluationData, columns: Columns, owner: Owners, groups: int) -> Evaluated:
    """Columns of statistics as metrics of each group."""
    metrics = {k: m.by_group(columns, owner, groups) for k, m in data.metrics(columns).items()}
    return Evaluated(metrics, np.ones(groups, np.bool_))


def measure_rows(data: EvaluationData, asked: Measurement, rows: Tensor) -> Columns:
    """Some rows of a measurement; of none, the names of the columns."""
    if len(rows):
        return measure(data.task, data.decode, asked.columns, asked.model, rows, data.batch, asked.together)
    one = measure_rows(data, asked, torch.zeros(1, dtype=torch.int64))
    return {k: v[:0] for k, v in one.items()}


def measure_side_by_side(data: EvaluationData, asked: Sequence[Measurement]) -> list[Columns]:
    """Several models, each on its own rows of the same columns, as one stack."""
    rows = [m.rows for m in asked]
    width = min(data.batch, max(map(len, rows)))
    steps = -(-max(map(len, rows)) // width)
    at = torch.arange(steps * width)
    plan = torch.stack([r[at.clamp(max=len(r) - 1)].reshape(steps, width) for r in rows])
    count = torch.stack([(len(r) - torch.arange(steps) * width).clamp(0, width) for r in rows])
    models = tree.map(lambda *xs: torch.stack(xs), *(m.model for m in asked))
    columns, owner = measure_each(data.task, data.decode, asked[0].columns, models, plan, count, stacked=True)
    return [{k: v[owner == c] for k, v in columns.items()} for c in range(len(asked))]


def measure(
    task: Task,
    decode: Decode,
    columns: Tree,
    model: Model,
    rows: Tensor | None,
    batch: int,
    together: bool = False,
) -> Columns:
    """One model, or several that predict together, on some rows of the data (None: all), a batch at a time."""
    device = tree.leaves(model["params"])[0].device
    n = len(columns["y"]) if rows is None else len(rows)
    rows = torch.arange(n) if rows is None else rows
    parts = []
    with torch.no_grad():
        for part in torch.split(rows.to(device), batch):  # type: ignore[no-untyped-call]
            real = torch.tensor(len(part), device=device)
            parts.append(_measured(task, decode, columns, model, part, real, together))
    return _arrays(parts, torch.ones(n, dtype=torch.bool))


def measure_each(
    task: Task, decode: Decode, columns: Tree, models: Model, plan: Tensor, count: Tensor, stacked: bool
) -> tuple[Columns, Owners]:
    """Model c of the stack on the rows plan[c]; also which client each measured row belongs to."""
    device = tree.leaves(models["params"])[0].device
    clients, steps, width = plan.shape
    real = torch.arange(width) < count[..., None]

    def one(model: Model, rows: Tensor, n: Tensor) -> Tree:
        return _measured(task, decode, columns, model, rows, n)

    parts = []
    with torch.no_grad():
        for s in range(steps):
            rows, n = plan[:, s].to(device), count[:, s].to(device)
            if stacked:
                with functional():
                    parts.append(vmap(one)(models, rows, n))
            else:
                each = [one(tree.rows(models, c), rows[c], n[c]) for c in range(clients)]
                parts.append(tree.map(lambda *xs: torch.stack(xs), *each))
    flat = [tree.map(lambda x: x.reshape(-1), part) for part in parts]
    owner = torch.arange(clients)[:, None].expand(clients, width)
    keep = torch.cat([real[:, s].reshape(-1) for s in range(steps)])
    return _arrays(flat, keep), np.concatenate([owner.reshape(-1).numpy()] * steps)[keep.numpy()]


def _blocks(snapshot: Train, block: int) -> Iterator[Train]:
    return (snapshot.rows(slice(i, i + block)) for i in range(0, len(snapshot.ids), block))


def _block(data: EvaluationData, on: str, snapshot: Train, models: Models, stacked: bool) -> Evaluated:
    """Some clients' own models, on their own examples or on the test data."""
    clients = len(snapshot.ids)
    columns, plan, count = _own_plan(data, snapshot.ids) if on == "own" else _test_plan(data, on, clients)
    stack, trained = models(snapshot)
    good = trained.finite.cpu()
    if bool(good.any()):
        order = trained.order.cpu()
        place = torch.zeros(clients, dtype=torch.int64).index_copy(0, order, torch.arange(len(order)))
        own = tree.rows(stack, place.to(tree.leaves(stack)[0].device))
    else:  # nobody's is finite: anybody's will do for the names of the columns
        own = tree.stack(snapshot.program.like, clients)
    rows, owner = measure_each(data.task, data.decode, columns, own, plan, count, stacked)
    result = metrics_by_group(data, rows, owner, clients)
    metrics = {k: np.where(good.numpy(), v, np.nan) for k, v in result.metrics.items()} if on == "own" else None
    return Evaluated(result.metrics if metrics is None else metrics, good.numpy())


def _own_plan(data: EvaluationData, ids: Tensor) -> tuple[Tree, Tensor, Tensor]:
    """Each client's own examples."""
    cohort = data.own_rows(ids)
    if cohort.plan.numel():
        return data.columns, cohort.plan, cohort.count
    # nobody holds a row: one that does not count, for the names of the columns
    plan, count = (torch.zeros(shape, dtype=torch.int64) for shape in ((len(ids), 1, 1), (len(ids), 1)))
    return data.columns, plan, count


def _common_rows(data: EvaluationData, on: str) -> tuple[Tree, Tensor]:
    """The test data or an attack's probe, and which rows of it are measured."""
    columns, chosen = (data.probe, None) if on == "probe" else (data.test, data.test_rows)
    assert columns is not None, f"there is no {on} to measure on"
    return columns, torch.arange(len(columns["y"])) if chosen is None else chosen


def _test_plan(data: EvaluationData, on: str, clients: int) -> tuple[Tree, Tensor, Tensor]:
    """The test data or the probe, for every client alike."""
    columns, rows = _common_rows(data, on)
    n, b = len(rows), data.test_batch
    steps = -(-n // b)
    plan = rows[torch.arange(steps * b).clamp(max=n - 1)].reshape(1, steps, b)
    count = (n - torch.arange(steps) * b).clamp(max=b).reshape(1, steps)
    return columns, plan.expand(clients, -1, -1), count.expand(clients, -1)


def _measured(
    task: Task, decode: Decode, columns: Tree, model: Model, rows: Tensor, n: Tensor, together: bool = False
) -> Tree:
    key = torch.zeros(2, dtype=torch.int64, device=rows.device)
    batch = batch_of(decode, columns, rows, n, key)
    return (task.measure_together if together else task.measure)(model["params"], model["buffers"], batch)


def _arrays(parts: list[Any], keep: Tensor) -> Columns:
    """To the host in one piece."""
    columns = tree.cat(parts)
    whole = torch.stack([v.double() for v in columns.values()]).cpu().numpy()
    return dict(zip(columns, whole if bool(keep.all()) else whole[:, keep.numpy()], strict=True))
