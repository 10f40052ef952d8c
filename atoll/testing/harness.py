"""Running an algorithm on a problem, round by round, on any engine and in any round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.algorithms import Snapshot
from atoll.core import (
    Algorithm,
    Chain,
    Context,
    Engine,
    Info,
    Outcome,
    Participation,
    Program,
    Reducer,
    Round,
    Train,
    extract,
    resolve,
)
from atoll.data import Population, Same
from atoll.engines import ClientStore, DeviceData, Loop, RowStore, Vector, with_places
from atoll.reducers import Collect, Mean
from atoll.rounds import Central
from atoll.runs import drive, on_promises
from atoll.testing.problems import SIZES, Problem
from atoll.tree import Tree
from atoll.wire import wire_bytes

CPU = torch.device("cpu")
EngineFactory = Callable[..., Engine]  # of data and a store: `Loop`, `Vector` and `Threads` are such
Cohorts = Callable[[int], Sequence[int]]


def stack(data: DeviceData, store: ClientStore, chunk: int = 1 << 30) -> Engine:
    """The stack without capture: the quickest for a few rounds."""
    return Vector(data, store, chunk, capture=False)


@dataclass
class Federation:
    """A round's state, an engine with the clients' state, and the rounds between them."""

    problem: Problem
    engine: Engine
    store: RowStore
    program: Program
    round: Round
    update_like: Tree
    state: Tree
    finite: bool = True
    number: int = 0

    @property
    def algorithm(self) -> Algorithm:
        return self.program.algorithm

    @property
    def server(self) -> Tree:
        """The server's state, or every node's."""
        server: Tree = self.state["server"]
        return server

    def run(self, ids: Sequence[int]) -> Outcome:
        """One round of these clients."""
        ctx, key = self.context(ids), rng.key("round", self.number)
        self.state, outcome = drive(on_promises(lambda: self.round.run(ctx, self.state, key)), self.engine)
        self.finite = self.finite and bool(outcome.columns().finite.all())
        self.number += 1
        return outcome

    def context(self, ids: Sequence[int]) -> Context:
        """What the next round of these clients is made of."""
        now = resolve(self.algorithm, self.number, [])
        who = torch.tensor(ids, dtype=torch.int64)
        participation = Participation("fixed", self.store.size, size=len(who))
        return Context(
            self.number,
            self.program,
            {"algorithm": extract(now), "chain": extract(self.program.chain)},
            now,
            self.program.chain,
            self.store.size,
            self.update_like,
            wire_bytes({"weight": torch.ones(()), "value": self.update_like}),
            lambda: (who, participation),
            rng.key("order", self.number),
            task=self.problem.task,
        )

    def request(self, ids: Sequence[int], **more: Any) -> Train:
        """The training of the next round, as an engine gets it."""
        ctx, who = self.context(ids), torch.tensor(ids, dtype=torch.int64)
        sent, seen = self.round.broadcast(ctx, self.state, who)
        key = rng.key("round", self.number)
        return ctx.train(sent, seen, who, key, per_client=self.round.traits().sends_rows, **more)

    def everyone(self) -> range:
        return range(self.store.size)

    def rows(self) -> Tree:
        """Every client's state, stacked."""
        return self.store.read(torch.arange(self.store.size))

    def models(self) -> Tree:
        """What every client would predict with now, stacked."""
        request = self.request(self.everyone())
        settings = {"algorithm": {"inner": request.settings["algorithm"]}, "chain": {}}
        program = Program(Snapshot(self.algorithm), Chain(), Collect(), self.problem.model)
        look = replace(request, program=program, settings=settings, state={}, max_steps=0, client_state="read")
        value: Tree = Loop(device_data(self.problem, self.algorithm), self.store).run(look).partial.updates.value
        return value


def federation(
    problem: Problem,
    algorithm: Algorithm,
    engine: EngineFactory = Loop,
    chain: Chain | None = None,
    reducer: Reducer[Any] | None = None,
    round: Round | None = None,
    counts: Mapping[str, Any] | None = None,
) -> Federation:
    """A federation before its first round. `counts` are what a run knows of its cohorts (`Spec.cohort`, ...)."""
    round = round or Central()
    reducer = round.reducer(reducer or Mean())
    now = resolve(algorithm, 0, [])
    like = update_like(now, problem)
    data = device_data(problem, algorithm)
    bound, _ = (chain or Chain()).bind(replace(reducer.spec(), size=tree.count(like), **(counts or {})))
    first, kept = bound.init(like)
    program = Program(algorithm, bound, reducer, bound.zeros(like, first, kept))
    store = RowStore({"algorithm": now.client_state(problem.model), "chain": kept}, data.population.size, CPU)
    made = Federation(problem, engine(data, store), store, program, round, like, {})
    made.state = round.init(made.context(made.everyone()), problem.model, rng.key("server"))
    return made


def device_data(problem: Problem, algorithm: Algorithm) -> DeviceData:
    """What an engine works on."""
    partition = problem.partition.pool() if algorithm.traits().pooled else problem.partition
    population = Population(partition, problem.batch, shuffle=False)
    keyed = problem.keyed or algorithm.traits().draws
    columns = with_places(problem.columns, population) if algorithm.traits().places else problem.columns
    return DeviceData(columns, Same(), CPU, population, keyed)


def train(
    problem: Problem,
    algorithm: Algorithm,
    rounds: int,
    cohorts: Cohorts | None = None,
    engine: EngineFactory = Loop,
    chain: Chain | None = None,
    reducer: Reducer[Any] | None = None,
    round: Round | None = None,
) -> Federation:
    """A federation after so many rounds; everyone takes part unless `cohorts` says who. Stops when it diverges."""
    made = federation(problem, algorithm, engine, chain, reducer, round)
    for r in range(rounds):
        if made.finite:
            made.run(made.everyone() if cohorts is None or algorithm.traits().pooled else cohorts(r))
    return made


def some(size: int, population: int = len(SIZES)) -> Cohorts:
    """`size` different clients in each round, the same ones in every run."""
    return lambda r: rng.choice(rng.key("cohort", r), population, size).tolist()


def update_like(now: Algorithm, problem: Problem) -> Tree:
    """The shape of one client's update: `finish` straight after `start`, as runs find it before their first round."""
    sent, own = now.send(now.init(problem.model, rng.key("server"))), now.client_state(problem.model)
    one: Tensor = torch.ones(())
    update = now.finish(now.start(sent, own), sent, own, Info(torch.tensor(0), one, one))[0]
    return tree.zeros_like(update.value)
