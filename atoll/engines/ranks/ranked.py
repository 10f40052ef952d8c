"""One engine on each rank, and their results as one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Job, Reducer, Result, Spec, Total, Update, lift
from atoll.engines import AnyEngine
from atoll.engines.ranks import buffers
from atoll.engines.ranks.balance import Costs, Schedule, greedy
from atoll.engines.ranks.world import World
from atoll.errors import TrainingError
from atoll.reducers import Stack
from atoll.tree import Tree


@dataclass(frozen=True)
class Unfinished:
    """A reducer that leaves the last step to the time when all ranks' parts are one."""

    inner: Reducer

    def spec(self) -> Spec:
        return self.inner.spec()

    def lift(self, updates: Update) -> Any:
        return self.inner.lift(updates)

    def lift_scaled(self, updates: Update, factors: Tree) -> Any:
        """As the one inside does it."""
        return lift(self.inner, updates, factors)

    def finish(self, partial: Any) -> Any:
        return partial


class Found(NamedTuple):
    """What all ranks know of the clients after the exchange, in the order of the cohort."""

    loss: Tensor
    finite: Tensor
    seconds: list[float]
    having: list[bool]  # which ranks have a part of the total


@dataclass
class Ranked:
    """Each rank trains its share of the cohort with its own engine; all get the same result.

    Clients with memory train at home, where it is (`job.memory.homes`). Others go to the rank with the least to do.
    """

    own: AnyEngine
    world: World
    schedule: Schedule = greedy
    costs: dict[int, Costs] = field(default_factory=dict)  # by algorithm
    spent: list[float] = field(default_factory=list)  # seconds of each rank since `lap`

    @property
    def name(self) -> str:
        """The engine's own."""
        return self.own.name

    @property
    def reason(self) -> str:
        """The engine's own."""
        return self.own.reason

    def run(self, job: Job) -> Result:
        """Do the job."""
        shares = self._shares(job)
        mine = (shares == self.world.rank).nonzero().flatten()
        before = time.perf_counter()
        part = self._part(job, mine) if len(mine) else None
        found = self._exchange(shares, mine, part, time.perf_counter() - before)
        self._learn(job, shares, found)
        if not any(found.having):
            return Result(None, found.loss, found.finite, torch.zeros(0, dtype=torch.int64))
        total, order = self._merged(shares, mine, part, found)
        return Result(job.reducer.finish(total), found.loss, found.finite, order)

    def lap(self) -> dict[str, float]:
        """Seconds of training on the slowest and the fastest rank, and what the slowest kept the mean waiting."""
        spent, self.spent = self.spent or [0.0] * self.world.size, []
        mean = sum(spent) / len(spent)
        found = {"slowest": max(spent), "fastest": min(spent), "straggler": max(spent) - mean}
        return {k: round(v, 6) for k, v in found.items()}

    def _shares(self, job: Job) -> Tensor:
        """The rank of every client of the cohort, (C,)."""
        homes = getattr(job.memory, "homes", None)
        if homes is not None:
            return cast(Tensor, homes[job.cohort.id.cpu()])
        costs = self._costs(job)(job.cohort.steps.tolist())
        return torch.tensor(self.schedule(costs, self.world.size), dtype=torch.int64)

    def _part(self, job: Job, mine: Tensor) -> Result:
        """What this rank's own engine makes of its clients."""
        sent = tree.rows(job.sent, mine.to(_device(job.sent))) if job.each else job.sent
        small = replace(job, cohort=job.cohort.rows(mine), sent=sent, reducer=Unfinished(job.reducer))
        result = self.own.run(small)
        if result.loss.is_cuda:
            torch.cuda.synchronize(result.loss.device)
        return result

    def _exchange(self, shares: Tensor, mine: Tensor, part: Result | None, seconds: float) -> Found:
        """One small sum: rows that a rank does not hold are 0, so a sum is a gather."""
        n, rank = len(shares), self.world.rank
        clients, ranks = torch.zeros(3, n, dtype=torch.float64), torch.zeros(2, self.world.size, dtype=torch.float64)
        ranks[:, rank] = torch.tensor([seconds, float(part is not None and part.total is not None)])
        if part is not None:
            clients[0, mine] = part.loss.double().cpu()
            clients[1, mine] = part.finite.double().cpu()
            clients[2, mine] = 1.0
        everything = self.world.add(torch.cat([clients.flatten(), ranks.flatten()]))
        clients, ranks = everything[: 3 * n].reshape(3, n), everything[3 * n :].reshape(2, -1)
        if not bool((clients[2] == 1).all()):
            raise TrainingError("ranks: they do not agree on who trains whom. Do all run the same version of atoll?")
        return Found(clients[0].float(), clients[1].bool(), ranks[0].tolist(), ranks[1].bool().tolist())

    def _learn(self, job: Job, shares: Tensor, found: Found) -> None:
        ranks = range(self.world.size)
        self.spent = [a + b for a, b in zip(self.spent or [0.0] * len(ranks), found.seconds, strict=True)]
        steps = [job.cohort.steps[shares == r] for r in ranks]
        self._costs(job).learn([(len(s), int(s.sum()), found.seconds[r]) for r, s in zip(ranks, steps, strict=True)])

    def _costs(self, job: Job) -> Costs:
        return self.costs.setdefault(id(job.algorithm), Costs())

    def _merged(self, shares: Tensor, mine: Tensor, part: Result | None, found: Found) -> tuple[Any, Tensor]:
        """The total of all ranks, and the positions in the cohort in the order in which it has them."""
        total = None if part is None else part.total
        order = torch.zeros(0, dtype=torch.int64) if part is None else mine[part.order]
        like = None
        if not all(found.having):  # some rank had nobody, and does not know what a total looks like
            source = found.having.index(True)
            like = self.world.tell(_like(total) if self.world.rank == source else None, source)
        kind = type(total) if total is not None else like[0]  # type: ignore[index]
        if kind is Total:
            return self._sum(total, like), found.finite.nonzero().flatten()
        if kind is Stack:
            return self._stack(total, like, order, shares, found)
        every = self.world.gather((total, order))  # a reducer of somebody's own
        parts = [p for p, _ in every if p is not None]
        for other in parts[1:]:
            parts[0] = parts[0].merge(other)
        return parts[0], torch.cat([o for _, o in every])

    def _sum(self, total: Total | None, like: Any) -> Total:
        here = buffers.zeros(like[1], self.own.device) if total is None else _fields(total)
        return Total(**self.world.sum(here))

    def _stack(
        self, total: Stack | None, like: Any, order: Tensor, shares: Tensor, found: Found
    ) -> tuple[Stack, Tensor]:
        """All updates in the order of the cohort. Ranks send theirs in that order, so that no positions need travel."""
        if total is None:
            here = buffers.zeros(like[1], self.own.device, rows=0)
        else:
            here = tree.rows(_fields(total), torch.argsort(order).to(total.updates.weight.device))
        places = [((shares == r) & found.finite).nonzero().flatten() for r in range(self.world.size)]
        rows = self.world.join_rows(here, [len(p) for p in places])
        back = torch.argsort(torch.cat(places))
        rows = tree.rows(rows, back.to(_device(rows)))
        return Stack(Update(rows["value"], rows["weight"])), torch.cat(places)[back]


def ranked(world: World) -> Callable[[AnyEngine], AnyEngine] | None:
    """How a driver's engine becomes one of many; None where it is alone."""
    return None if world.size == 1 else lambda own: cast(AnyEngine, Ranked(own, world))


def _fields(total: Total | Stack) -> dict[str, Any]:
    if isinstance(total, Total):
        return {"value": total.value, "weight": total.weight, "count": total.count}
    return {"value": total.updates.value, "weight": total.updates.weight}


def _like(total: Any) -> tuple[type, Any]:
    """What a rank without a part must know of it."""
    return type(total), buffers.layout(_fields(total)) if type(total) in (Total, Stack) else None


def _device(rows: Any) -> torch.device:
    leaves = tree.leaves(rows)
    return leaves[0].device if leaves else torch.device("cpu")
