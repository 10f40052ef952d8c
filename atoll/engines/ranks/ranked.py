"""One engine on each rank, and their answers as one."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from atoll import tree
from atoll.core import (
    ClientStates,
    Columns,
    Engine,
    Evaluate,
    Evaluated,
    Info,
    Pending,
    Program,
    Request,
    Stack,
    Total,
    Train,
    Trained,
    Update,
)
from atoll.engines import LocalEngine, join_evaluated, join_pieces, measure_rows, measurement, metrics_by_group
from atoll.engines.ranks.balance import Costs, Schedule, greedy
from atoll.engines.ranks.sharded_store import ShardedStore
from atoll.engines.ranks.world import World
from atoll.errors import DivergenceError, TrainingError
from atoll.tree import Tree


class Gathered(NamedTuple):
    """What all ranks know of the clients after the exchange, in the order of the request."""

    loss: Tensor
    finite: Tensor
    examples: Tensor
    seconds: list[float]
    upload: Tensor | None


@dataclass
class Ranked(Engine):
    """Each rank trains its share of the cohort with its own engine; all get the same answer.

    Clients that keep something train at home, where it is. Others go to the rank with the least to do.
    """

    name: ClassVar[str] = "ranks"

    own: LocalEngine
    world: World
    schedule: Schedule = greedy
    costs: dict[Program, Costs] = field(default_factory=dict)
    spent: list[float] = field(default_factory=list)  # seconds of each rank since `lap`

    @property
    def notes(self) -> list[str]:  # type: ignore[override]
        """The own engine's."""
        return self.own.notes

    def choice(self) -> dict[str, Any]:
        return self.own.choice()

    def expect(self, rounds: int) -> None:
        self.own.expect(rounds)

    def submit(self, request: Request) -> Pending[Any]:
        if isinstance(request, Train):
            return Pending.done(self._train(request))
        if isinstance(request, Evaluate):
            return Pending.done(self._evaluate(request))
        return self.own.submit(request)

    def state(self) -> ClientStates:
        """On rank 0, to which all rows come; nothing on the others."""
        store = self.own.store
        return store.gathered() if isinstance(store, ShardedStore) else self.own.state()

    def load(self, pieces: Iterable[tuple[Tensor, Tree]]) -> None:
        """From a checkpoint, which rank 0 has: every row goes home."""
        store = self.own.store
        if isinstance(store, ShardedStore):
            store.scatter(join_pieces(pieces, store.layout) if self.world.rank == 0 else None)
        else:
            self.own.load(pieces)

    def lap(self) -> dict[str, Any]:
        """Seconds of training on the slowest and the fastest rank, and what the slowest kept the mean waiting."""
        spent, self.spent = self.spent or [0.0] * self.world.size, []
        mean = sum(spent) / len(spent)
        seconds = {"slowest": max(spent), "fastest": min(spent), "straggler": max(spent) - mean}
        return {"ranks": {k: round(v, 6) for k, v in seconds.items()}}

    def _train(self, request: Train) -> Trained:
        steps = self.own.data.population.steps(request.ids)
        shares = self._shares(request, steps)
        mine = (shares == self.world.rank).nonzero().flatten()
        before = time.perf_counter()
        part: Trained = self.own.train(request.rows(mine)).result()
        if self.own.data.device.type == "cuda":
            torch.cuda.synchronize(self.own.data.device)
        every = self._exchange(shares, mine, part, time.perf_counter() - before)
        self._learn(request, shares, steps, every.seconds)
        partial, order = self._merged(request, shares, mine, part, every)
        return Trained.settled(partial, every.examples, Columns(every.loss, every.finite, order, every.upload))

    def _shares(self, request: Train, steps: Tensor) -> Tensor:
        """The rank of every client of the request, (C,)."""
        store = self.own.store
        if isinstance(store, ShardedStore) and request.client_state != "none":
            return store.homes[request.ids.cpu()]
        costs = self._costs(request)(steps.tolist())
        return torch.tensor(self.schedule(costs, self.world.size), dtype=torch.int64)

    def _exchange(self, shares: Tensor, mine: Tensor, part: Trained, seconds: float) -> Gathered:
        """One small sum: rows that a rank does not hold are 0, so a sum is a gather."""
        n, rank = len(shares), self.world.rank
        clients, ranks = torch.zeros(5, n, dtype=torch.float64), torch.zeros(self.world.size, dtype=torch.float64)
        ranks[rank] = seconds
        sizes = part.columns().upload
        uploads = torch.full((len(mine),), -1) if sizes is None else sizes
        here = torch.ones(len(mine))
        columns = part.loss.double().cpu(), part.finite.double().cpu(), part.examples.double(), here, uploads
        for row, column in zip(clients, columns, strict=True):
            row[mine] = column.double()
        everything = self.world.all_reduce(torch.cat([clients.flatten(), ranks]))
        clients, ranks = everything[: 5 * n].reshape(5, n), everything[5 * n :]
        if not bool((clients[3] == 1).all()):
            raise TrainingError("ranks: they do not agree on who trains whom. Do all run the same version of atoll?")
        upload = clients[4].long() if n and bool((clients[4] >= 0).all()) else None
        return Gathered(clients[0].float(), clients[1].bool(), clients[2].float(), ranks.tolist(), upload)

    def _learn(self, request: Train, shares: Tensor, steps: Tensor, seconds: list[float]) -> None:
        ranks = range(self.world.size)
        self.spent = [a + b for a, b in zip(self.spent or [0.0] * len(ranks), seconds, strict=True)]
        of = [steps[shares == r] for r in ranks]
        self._costs(request).learn([(len(s), int(s.sum()), seconds[r]) for r, s in zip(ranks, of, strict=True)])

    def _costs(self, request: Train) -> Costs:
        return self.costs.setdefault(request.program, Costs())

    def _merged(
        self, request: Train, shares: Tensor, mine: Tensor, part: Trained, every: Gathered
    ) -> tuple[Any, Tensor]:
        """The partial aggregate of all ranks, and the positions in the request in the order in which it has them."""
        partial = part.partial
        if isinstance(partial, Total):
            fields = {"value": partial.value, "weight": partial.weight, "count": partial.count}
            return Total(**self.world.all_reduce_tree(fields)), every.finite.nonzero().flatten()
        if isinstance(partial, Stack):
            return self._stack(partial, mine[part.order], shares, every)
        pairs = self.world.all_gather((partial, mine[part.order]))  # a reducer of somebody's own
        return request.program.reducer.merge_all([p for p, _ in pairs], request.program.like), torch.cat(
            [o for _, o in pairs]
        )

    def _stack(self, stack: Stack, order: Tensor, shares: Tensor, every: Gathered) -> tuple[Stack, Tensor]:
        """All updates in the order of the request. Ranks send theirs in that order, so no positions need travel."""
        here = {"value": stack.updates.value, "weight": stack.updates.weight, "info": stack.info._asdict()}
        if len(stack):
            here = tree.rows(here, torch.argsort(order).to(stack.updates.weight.device))
        places = [((shares == r) & every.finite).nonzero().flatten() for r in range(self.world.size)]
        rows = self.world.all_gather_rows(here, [len(p) for p in places])
        back = torch.argsort(torch.cat(places))
        rows = tree.rows(rows, back.to(rows["weight"].device))
        return Stack(Update(rows["value"], rows["weight"]), Info(**rows["info"])), torch.cat(places)[back]

    def _evaluate(self, request: Evaluate) -> Evaluated:
        return self._one_model(request) if request.model is not None else self._own_models(request)

    def _one_model(self, request: Evaluate) -> Evaluated:
        """Each rank takes some of the batches, cut as one process would; all get the rows of all, in order."""
        data = self.own.data.evaluation
        assert data is not None
        asked = measurement(data, request)
        ends = batch_ends(len(asked.rows), data.batch, self.world.size)
        here = measure_rows(data, asked, asked.rows[ends[self.world.rank] : ends[self.world.rank + 1]])
        counts = [b - a for a, b in pairwise(ends)]
        rows = self.world.all_gather_rows({k: torch.from_numpy(v) for k, v in here.items()}, counts)
        return metrics_by_group(data, {k: v.numpy() for k, v in rows.items()}, asked.owner, asked.groups)

    def _own_models(self, request: Evaluate) -> Evaluated:
        """Each rank measures its own clients: those at home there, or every so many."""
        assert request.snapshot is not None
        mine = self._own_part(request.ids)
        parts: list[Evaluated] = []
        error: DivergenceError | None = None
        try:
            if len(mine):
                ids = request.ids[mine]
                parts = [self.own.evaluate(Evaluate(request.on, ids, snapshot=request.snapshot.rows(mine)))]
        except DivergenceError as e:  # all ranks must raise it, not only the one that saw it
            error = e
        every = self.world.all_gather((mine.numpy(), parts, error))
        wrong = [e for _, _, e in every if e is not None]
        if wrong:
            raise error or wrong[0]
        whole = join_evaluated([p for _, ps, _ in every for p in ps])
        back = np.argsort(np.concatenate([place for place, _, _ in every]))
        return Evaluated({k: v[back] for k, v in whole.metrics.items()}, whole.finite[back])

    def _own_part(self, ids: Tensor) -> Tensor:
        store = self.own.store
        if isinstance(store, ShardedStore):
            ranks = store.homes[ids]
        else:
            ranks = torch.arange(len(ids)) % self.world.size
        return (ranks == self.world.rank).nonzero().flatten()


def batch_ends(rows: int, batch: int, ranks: int) -> list[int]:
    """Where each rank's rows begin, and where the last one's end: whole batches, as even as can be."""
    batches = -(-rows // batch)
    return [min(rows, batches * r // ranks * batch) for r in range(ranks + 1)]
