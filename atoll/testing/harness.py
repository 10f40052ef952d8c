"""Running an algorithm on a problem, round by round, on any engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atoll import rng
from atoll.algorithms.wrappers import Snapshot
from atoll.core import Algorithm, Chain, Cohort, Engine, Info, Job, Reducer, Result
from atoll.core.settings import extract, resolve
from atoll.data import Population, Same
from atoll.engines import Loop, RowStore, Scratch, Vector
from atoll.engines.program import Decode
from atoll.reducers import Keep, Mean
from atoll.rounds import Parts, central_round
from atoll.testing.problems import SIZES, Problem
from atoll.tree import Tree

CPU = torch.device("cpu")
EngineFactory = Callable[..., Engine]  # of columns, decode, device and keyed: `Loop`, `Vector` and `Threads` are such
Cohorts = Callable[[int], Sequence[int]]


@contextmanager
def one_thread() -> Iterator[None]:
    """Tensors this small are computed several times faster by one thread than by two that wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def stack(columns: Tree, decode: Decode, device: torch.device, keyed: bool, chunk: int = 1 << 30) -> Engine:
    """The stack without capture: the quickest for a few rounds."""
    return Vector(columns, decode, device, keyed, chunk, capture=False)


@dataclass
class Federation:
    """A server, its clients' memory, and the rounds between them."""

    problem: Problem
    algorithm: Algorithm
    engine: Engine
    chain: Chain
    reducer: Reducer
    server: Tree
    state: Tree
    memory: RowStore
    finite: bool = True
    round: int = 0

    def run(self, ids: Sequence[int]) -> Result:
        """One round of these clients; what the engine found."""
        now = resolve(self.algorithm, self.round, [])
        settings = {"algorithm": extract(now), "chain": extract(self.chain)}
        parts = Parts(self.algorithm, self.chain, now, self.chain, settings, self.reducer, self.engine, self.memory)
        cohort, key = self.cohort(ids), rng.key("round", self.round)
        self.server, self.state, result = central_round(parts, cohort, self.server, self.state, key)
        self.finite = self.finite and bool(result.finite.all())
        self.round += 1
        return result

    def job(self, ids: Sequence[int]) -> Job:
        """The work of the next round, as an engine gets it."""
        now = resolve(self.algorithm, self.round, [])
        settings = {"algorithm": extract(now), "chain": extract(self.chain)}
        sent, cohort, key = now.send(self.server), self.cohort(ids), rng.key("round", self.round)
        return Job(self.algorithm, self.chain, self.reducer, settings, sent, self.state, cohort, self.memory, key)

    def cohort(self, ids: Sequence[int]) -> Cohort:
        """The examples that these clients see."""
        problem = self.problem
        partition = problem.partition.pool() if self.algorithm.traits().pooled else problem.partition
        population = Population(partition, problem.batch, shuffle=False)
        return population.cohort(torch.tensor(ids, dtype=torch.int64), rng.key("order", self.round))

    def everyone(self) -> range:
        """All clients."""
        return range(self.memory.size)

    def rows(self) -> Tree:
        """Every client's memory, stacked."""
        return self.memory.read(torch.arange(self.memory.size))

    def models(self) -> Tree:
        """What every client would predict with now, stacked."""
        job = self.job(self.everyone())
        still = replace(job.cohort, steps=torch.zeros_like(job.cohort.steps), count=torch.zeros_like(job.cohort.count))
        settings = {"algorithm": {"inner": job.settings["algorithm"]}, "chain": {}}
        loop = Loop(self.problem.columns, Same(), CPU, self.problem.keyed)
        look = Job(Snapshot(self.algorithm), Chain(), Keep(), settings, job.sent, {}, still, _Own(self.memory), job.key)
        value: Tree = loop.run(look).total.updates.value
        return value


@dataclass(frozen=True)
class _Own(Scratch):
    """A memory without what transforms keep in it."""

    def read(self, ids: Tensor) -> Tree:
        return {**super().read(ids), "chain": {}}


def federation(
    problem: Problem,
    algorithm: Algorithm,
    engine: EngineFactory = Loop,
    chain: Chain | None = None,
    reducer: Reducer | None = None,
) -> Federation:
    """A federation before its first round."""
    reducer = reducer or Mean()
    bound, _ = (chain or Chain()).bind(reducer.spec())
    now = resolve(algorithm, 0, [])
    server, own = now.init(problem.model, rng.key("server")), now.client_state(problem.model)
    state, kept = bound.init(update_like(now, server, own))
    size = 1 if algorithm.traits().pooled else problem.partition.size
    rows = RowStore({"algorithm": own, "chain": kept}, size, CPU)
    built = engine(problem.columns, Same(), CPU, problem.keyed)
    return Federation(problem, algorithm, built, bound, reducer, server, state, rows)


def train(
    problem: Problem,
    algorithm: Algorithm,
    rounds: int,
    cohorts: Cohorts | None = None,
    engine: EngineFactory = Loop,
    chain: Chain | None = None,
    reducer: Reducer | None = None,
) -> Federation:
    """A federation after so many rounds; everyone takes part unless `cohorts` says who. Stops when it diverges."""
    made = federation(problem, algorithm, engine, chain, reducer)
    for r in range(rounds):
        if made.finite:
            made.run(made.everyone() if cohorts is None or algorithm.traits().pooled else cohorts(r))
    return made


def some(size: int, population: int = len(SIZES)) -> Cohorts:
    """`size` different clients in each round, the same ones in every run."""
    return lambda r: rng.choice(rng.key("cohort", r), population, size).tolist()


def update_like(now: Algorithm, server: Tree, own: Tree) -> Tree:
    """The shape of one client's update: `finish` straight after `start`, as runs find it before their first round."""
    sent, one = now.send(server), torch.ones(())
    return now.finish(now.start(sent, own), sent, own, Info(torch.tensor(0), one, one))[0].value
