"""Measuring a run: the server's model on the test data, and every client's model on its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll import rng, tree
from atoll.core import Algorithm, Chain, Job, Model
from atoll.core.engine import Store
from atoll.data import Partition, Population
from atoll.engines import AnyEngine, Scratch, measure, measure_each
from atoll.engines.ranks import ALONE, World
from atoll.errors import DivergenceError
from atoll.experiment.experiment import EvaluateTable
from atoll.experiment.setup import Setup
from atoll.reducers import Keep
from atoll.rounds import Gossip
from atoll.tasks import metrics_for, spread
from atoll.tree import Tree

_KEEP, _PLAIN = Keep(), Chain()
_WHOLE = 100  # models of clients that are measured on the test data, at most
_GPU_BATCH = 4096  # examples of one model at a time that keep a GPU busy
_BYTES = 1 << 30  # of clients' models at a time
Table = dict[str, NDArray[np.float64]]


@dataclass
class Evaluation:
    """What one evaluation found: flat central metrics, their spread over clients, and every client's own."""

    central: dict[str, float]
    clients: dict[str, dict[str, float]]
    after: dict[str, dict[str, float]] | None
    each: dict[str, Any]


@dataclass(frozen=True)
class Moment:
    """The state of a run between two rounds."""

    now: Algorithm  # with the numbers of the round
    settings: Tree
    server: Tree
    memory: Store
    key: Tensor


class Evaluator:
    """Knows the data, whom to measure, and how. Ranks measure a part each, and all get the whole."""

    def __init__(self, setup: Setup, engine: AnyEngine, columns: Tree, test: Tree | None, world: World = ALONE) -> None:
        self.setup, self.engine, self.columns, self.test, self.world = setup, engine, columns, test, world
        self.table = setup.experiment.evaluate
        self.ids = _chosen(setup.training.size, self.table.clients, setup.experiment.seed)
        self.rows = None if test is None else _few_rows(len(test["y"]), self.table.rows, setup.experiment.seed)
        self.own = _own_rows(setup.held or setup.training, len(self.ids), self.table)
        self.key = rng.key(setup.experiment.seed, "measured", "own rows")
        traits = setup.algorithm.traits()
        self.after = self.table.after and not traits.pooled
        self.personal = traits.personal or isinstance(setup.topology, Gossip)
        self.partial = traits.partial
        self.stacked = engine.name != "loop"
        self.block = max(1, min(1024, int(_BYTES // max(1, tree.nbytes(setup.model)))))
        self.measure = measure  # runs that go together put another in its place

    def __call__(self, state: Moment) -> Evaluation:
        """Measure the state as it is now."""
        before = self._before(state) if len(self.ids) else {}
        after = self._own_models(state, trained=True) if self.after and len(self.ids) else None
        return Evaluation(
            self._central(state),
            self._spread(before),
            None if after is None else self._spread(after),
            self._each(before, after),
        )

    def _central(self, state: Moment) -> dict[str, float]:
        if self.test is None:
            return {}
        if self.partial:
            return self._clients_on_test(state, self.test)
        found = self._measure(self.test, self.setup.topology.model(state.server), self.rows)
        table = self._finish(found, np.zeros(len(found["loss"]), np.int64), 1)
        return {k: float(v[0]) for k, v in table.items()}

    def _before(self, state: Moment) -> Table:
        if self.personal:
            return self._own_models(state, trained=False)
        cohort = self.own.cohort(self.ids, self.key)
        real = torch.arange(cohort.plan.shape[2]) < cohort.count[..., None]
        owner = torch.arange(len(self.ids))[:, None, None].expand(cohort.plan.shape)[real]
        found = self._measure(self.columns, self.setup.topology.model(state.server), cohort.plan[real])
        return self._finish(found, owner.numpy(), len(self.ids))

    def _own_models(self, state: Moment, trained: bool) -> Table:
        """Every measured client's own model on its own data."""

        def block(ids: Tensor) -> Table:
            cohort = self.own.cohort(ids, self.key)
            plan, count = cohort.plan, cohort.count
            if not plan.numel():  # nobody holds a row: one that does not count, for the names of the columns
                plan, count = (torch.zeros(shape, dtype=torch.int64) for shape in ((len(ids), 1, 1), (len(ids), 1)))
            models, good = self._models(state, ids, trained)
            found, owner = self._measure_each(self.columns, models, plan, count)
            table = self._finish(found, owner, len(ids))
            return {k: np.where(good, v, np.nan) for k, v in table.items()}

        return self._by_client(state, self.ids, block)

    def _by_client(self, state: Moment, ids: Tensor, measured: Callable[[Tensor], Table]) -> Table:
        """A row for each of these clients, a block of them at a time; each rank does its own."""
        mine = _own_part(ids, state.memory, self.world)
        tables: list[Table] = []
        error: DivergenceError | None = None
        try:
            for part in torch.split(ids[mine], self.block):  # type: ignore[no-untyped-call]
                tables += [measured(part)] if len(part) else []
        except DivergenceError as e:  # all ranks must raise it, not only the one that saw it
            error = e
        every = self.world.gather((mine.numpy(), tables, error))
        wrong = [e for _, _, e in every if e is not None]
        if wrong:
            raise error or wrong[0]
        place = np.concatenate([p for p, _, _ in every])
        blocks = [t for _, ts, _ in every for t in ts]
        back = np.argsort(place)
        return {k: np.concatenate([b[k] for b in blocks])[back] for k in blocks[0]} if blocks else {}

    def _clients_on_test(self, state: Moment, test: Tree) -> dict[str, float]:
        """The mean over clients of their own models' metrics on the test data: no server model is whole."""
        rows = torch.arange(len(test["y"])) if self.rows is None else self.rows
        n, b = len(rows), self.table.batch
        steps = -(-n // b)
        plan = rows[torch.arange(steps * b).clamp(max=n - 1)].reshape(1, steps, b)
        count = (n - torch.arange(steps) * b).clamp(max=b).reshape(1, steps)

        def block(ids: Tensor) -> Table:
            c = len(ids)
            models, _ = self._models(state, ids, trained=False)
            found, owner = self._measure_each(test, models, plan.expand(c, -1, -1), count.expand(c, -1))
            return self._finish(found, owner, c)

        return {k: float(v.mean()) for k, v in self._by_client(state, self.ids[:_WHOLE], block).items()}

    def _models(self, state: Moment, ids: Tensor, trained: bool) -> tuple[Model, NDArray[np.bool_]]:
        """What each of these clients predicts with, before or after training: one stack; and which are finite."""
        cohort = self.setup.population.cohort(ids, state.key)
        if not trained:
            cohort = replace(cohort, steps=torch.zeros_like(cohort.steps), count=torch.zeros_like(cohort.count))
        sent, each = self.setup.topology.sent(state.now, state.server, cohort.id)
        settings = {"algorithm": {"inner": state.settings["algorithm"]}, "chain": {}}
        job = Job(
            self.setup.snapshot, _PLAIN, _KEEP, settings, sent, {}, cohort, Scratch(state.memory), state.key, each
        )
        result = self.engine.run(job)
        good = result.finite.cpu()
        if not good.all() and self.setup.experiment.on_divergence == "stop":
            raise DivergenceError(f"the models of clients {ids[~good].tolist()} are not finite. Lower algorithm.lr.")
        if result.total is None:
            return tree.stack(self.setup.model, len(ids)), good.numpy()
        place = torch.zeros(len(ids), dtype=torch.int64).index_copy(0, result.order, torch.arange(len(result.order)))
        return tree.rows(result.total.updates.value, place.to(self.setup.device)), good.numpy()

    def _measure(self, columns: Tree, model: Model, rows: Tensor | None) -> Table:
        """Each rank takes some of the batches, cut as one process would; all get the rows of all, in order."""
        if self.world.size == 1:
            return self._part(columns, model, rows)
        rows = torch.arange(len(columns["y"])) if rows is None else rows
        ends = _ends(len(rows), self._batch(), self.world.size)
        found = self._part(columns, model, rows[ends[self.world.rank] : ends[self.world.rank + 1]])
        counts = [b - a for a, b in pairwise(ends)]
        joined = self.world.join_rows({k: torch.from_numpy(v) for k, v in found.items()}, counts)
        return {k: v.numpy() for k, v in joined.items()}

    def _part(self, columns: Tree, model: Model, rows: Tensor | None) -> Table:
        if rows is not None and not len(rows):
            return {k: v[:0] for k, v in self._part(columns, model, torch.zeros(1, dtype=torch.int64)).items()}
        return self.measure(self.setup.task, self.setup.dataset.decode, columns, model, rows, self._batch())

    def _batch(self) -> int:
        return max(self.table.batch, _GPU_BATCH) if self.setup.device.type == "cuda" else self.table.batch

    def _measure_each(
        self, columns: Tree, models: Model, plan: Tensor, count: Tensor
    ) -> tuple[Table, NDArray[np.int64]]:
        decode = self.setup.dataset.decode
        return measure_each(self.setup.task, decode, columns, models, plan, count, self.stacked)

    def _finish(self, columns: Table, group: NDArray[np.int64], groups: int) -> Table:
        chosen = metrics_for(self.setup.dataset.kind, columns)
        return {k: m.by_group(columns, group, groups) for k, m in chosen.items()}

    def _spread(self, table: Table) -> dict[str, dict[str, float]]:
        better = {k: m.better for k, m in metrics_for(self.setup.dataset.kind, _COLUMNS).items()}
        return {k: spread(v, better.get(k, "higher")) for k, v in table.items()}

    def _each(self, before: Table, after: Table | None) -> dict[str, Any]:
        return {
            "ids": self.ids.tolist(),
            "examples": self.setup.training.sizes_of(self.ids).tolist(),
            "on": "training data" if self.setup.held is None else "holdout",
            "before": {k: v.tolist() for k, v in before.items()},
            "after": None if after is None else {k: v.tolist() for k, v in after.items()},
        }


_COLUMNS = dict.fromkeys(("weight", "loss", "correct", "squared", "absolute", "score", "label"))


def _chosen(population: int, clients: int | str, seed: int) -> Tensor:
    """The clients to measure: all of them, or the same ones in every round."""
    if clients == "all" or int(clients) >= population:
        return torch.arange(population)
    return rng.distinct(rng.key(seed, "measured"), population, int(clients)).sort().values


def _few_rows(examples: int, rows: int | str, seed: int) -> Tensor | None:
    """The rows of the test data to measure, the same ones in every round; None: all of them."""
    if rows == "all" or int(rows) >= examples:
        return None
    return rng.distinct(rng.key(seed, "measured", "test rows"), examples, int(rows)).sort().values


def _own_part(ids: Tensor, memory: Store, world: World) -> Tensor:
    """The positions of those that this rank measures: at home where they have memory, else every so many."""
    homes = getattr(memory, "homes", None)
    ranks = torch.arange(len(ids)) % world.size if homes is None else homes[ids]
    return (ranks == world.rank).nonzero().flatten()


def _ends(rows: int, batch: int, ranks: int) -> list[int]:
    """Where each rank's rows begin, and where the last one's end: whole batches, as even as can be."""
    batches = -(-rows // batch)
    return [min(rows, batches * r // ranks * batch) for r in range(ranks + 1)]


def _own_rows(partition: Partition, clients: int, table: EvaluateTable) -> Population:
    """How each of so many clients reads its own rows: all of them, or its part of `rows`."""
    each = max(1, int(table.rows) // max(1, clients)) if table.rows != "all" else None
    if each is None or each >= int(partition.sizes.max()):
        return Population(partition, table.batch, shuffle=False)
    steps = -(-each // table.batch)
    return Population(partition, each // steps, max_steps=steps)
