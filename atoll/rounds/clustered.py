"""Several models of one server, each for a cluster of clients: what all such rounds share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.algorithms import ModelLosses, model_of
from atoll.clock import Clock
from atoll.core import (
    OWN_MODELS,
    Algorithm,
    Chain,
    Context,
    Count,
    Model,
    Outcome,
    Play,
    Program,
    Reducer,
    Round,
    RoundTraits,
    Task,
    Traffic,
    Train,
)
from atoll.errors import ConfigError
from atoll.reducers import Collect, Deferred
from atoll.rounds.algorithm_needs import OTHERS, check_needs
from atoll.rounds.clocked import Clocked
from atoll.rounds.foretold_bytes import foretold_bytes
from atoll.rounds.server_stack import PARTS, StackStep, all_sent, sent_rows
from atoll.tree import Tree
from atoll.wire import wire_bytes

CLUSTER = "cluster"  # (N,) in the state: the cluster that each client was in when it last came; -1: never


@dataclass(frozen=True)
class Clustered(Round):
    """One server with `clusters` models. State: a row of {"server", "chain", "reducer"} for each, and `cluster`.

    A client that never came counts to the largest cluster. The model that is saved as the run's own is that of the
    largest cluster; all of them are measured beside it, and central metrics are the mean over clients' models.
    """

    clusters: Count = 2

    def traits(self) -> RoundTraits:
        return replace(OWN_MODELS, partial=True)

    def reducer(self, named: Reducer[Any]) -> Reducer[Any]:
        """The named one, for each cluster's updates."""
        if named.needs_root():
            raise ConfigError(
                "reducer.name: compares updates to one that the server makes from its one model, and with clusters it "
                "has several. Use 'median' or 'mean', or round.name = 'central'."
            )
        return Deferred(named)

    def check(self, algorithm: Algorithm) -> None:
        pooled = "so there are no clients to put into clusters. Use round.name = 'central'."
        counted = f"which is none of one cluster as soon as a client changes it. Use round.name = 'central', {OTHERS}."
        check_needs(algorithm, pooled, counted)

    def check_population(self, population: int) -> None:
        if self.clusters > population:
            raise ConfigError(
                f"round.clusters: {self.clusters} are more than the {population} clients, so some would never have "
                f"a member. Use at most {population}."
            )

    def in_virtual_time(self, clock: Clock, steps: Callable[[Tensor], Tensor]) -> Round:
        """There is one server, which waits."""
        return Clocked(self, clock, steps)

    def model(self, state: Tree) -> Model:
        return tree.rows(model_of(state["server"]), int(self.sizes(state).argmax()))

    def beside(self, state: Tree) -> dict[str, Model]:
        models = model_of(state["server"])
        return {f"cluster{k}": tree.rows(models, k) for k in range(self.clusters)} if self.clusters > 1 else {}

    def broadcast(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[Tree, Tree]:
        """The models of their clusters."""
        return sent_rows(ctx, state, self.members(state, ids))

    def members(self, state: Tree, ids: Tensor) -> Tensor:
        """(C,) the cluster of each of these clients, on the host."""
        known = state[CLUSTER].cpu()[ids]
        return torch.where(known >= 0, known, self.sizes(state).argmax())

    def sizes(self, state: Tree) -> Tensor:
        """(K,) clients in each cluster."""
        known = state[CLUSTER].cpu()
        return torch.bincount(known[known >= 0], minlength=self.clusters)

    @abstractmethod
    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play: ...

    def ended(
        self,
        ctx: Context,
        state: Tree,
        step: StackStep,
        trained: Any,
        who: tuple[Tensor, Any],
        which: Tensor,
        extra: Tree,
    ) -> tuple[Tree, Outcome]:
        """The new state, and what a round says of its clusters."""
        ids, participation = who
        before = state[CLUSTER].cpu()
        after = before.index_copy(0, ids, which)
        switched = ((before[ids] >= 0) & (before[ids] != which)).sum()
        sizes = torch.bincount(after[after >= 0], minlength=self.clusters)
        said = {"sizes": sizes, "members": which, "switched": switched, **extra}
        diagnostics: Tree = {"clusters": said, **{f"cluster{k}": v for k, v in step.diagnostics.items()}}
        traffic = self.traffic(ctx, state, ids)
        outcome = Outcome(ids, participation, trained.examples, trained.columns, traffic, step.changed, diagnostics)
        return {**state, **step.state, CLUSTER: after.to(state[CLUSTER].device)}, outcome

    def total_bytes(
        self, ctx: Context, state: Tree, first: Outcome, pools: Callable[[int], Tensor], rounds: int
    ) -> dict[str, int]:
        return foretold_bytes(self, ctx, state, pools, rounds)

    def traffic(self, ctx: Context, state: Tree, ids: Tensor) -> Traffic:
        """Of a server that knows who is in which cluster."""
        return Traffic(ctx.traffic(len(ids), {}).up, len(ids) * int(self.message_bytes(ctx, state, ids)[0]))


def bytes_of_models(ctx: Context, state: Tree, models: int) -> tuple[float, float]:
    """Bytes of so many models to each client, and of an update from it, with its choice where there is one."""
    choice = index_bytes() if models > 1 else 0
    return float(models * wire_bytes(tree.rows(all_sent(ctx, state), 0))), float(ctx.program.upload.most_bytes + choice)


def choose(
    ctx: Context, state: Tree, ids: Tensor, key: Tensor, max_steps: int | None
) -> Any:  # a generator of one request, which returns (C,) on the host
    """Each client takes the model that loses least on its own examples; of models that lose the same, the first."""
    assert ctx.task is not None, "whoever runs a round that measures says what is learned"
    sent = all_sent(ctx, tree.select(state, PARTS))
    clusters = len(tree.leaves(sent["params"])[0])
    program = _measuring(ctx.program, ctx.task, clusters)  # type: ignore[arg-type]  # tasks hash by what they are
    settings = {"algorithm": {"inner": ctx.settings["algorithm"]}, "chain": {}}
    more: dict[str, Any] = {"client_state": "read", "row_table": ctx.row_table, "max_steps": max_steps}
    asked = Train(program, settings, sent, {}, ids, rng.fold_name(key, "choose"), ctx.order, **more)
    measured = yield asked
    losses = measured.partial.updates.value["losses"].cpu()
    best = losses.argmin(1) if len(losses) else torch.zeros(0, dtype=torch.int64)
    return torch.zeros(len(ids), dtype=torch.int64).index_copy(0, measured.order.cpu(), best)


@lru_cache(maxsize=8)
def _measuring(program: Program, task: Task, clusters: int) -> Program:
    """What measures the models; one object for all rounds."""
    like = {"losses": torch.zeros(clusters, device=tree.device(program.like))}
    return Program(ModelLosses(program.algorithm, task), Chain(), Collect(), like)


def index_bytes() -> int:
    """What the number of a cluster adds to an update."""
    one, more = torch.ones(()), torch.zeros((), dtype=torch.int64)
    return wire_bytes({"weight": one, CLUSTER: more}) - wire_bytes({"weight": one})


def drawn_like(model: Model, key: Tensor) -> Model:
    """Another model of the same kind: every tensor of parameters drawn anew, with the mean and spread that it has."""
    place = iter(range(len(tree.leaves(model["params"]))))

    def drawn(x: Tensor) -> Tensor:
        noise = rng.normal(rng.fold(key, next(place)), tuple(x.shape)).to(x.device, x.dtype)
        return x.mean() + (x - x.mean()).pow(2).mean().sqrt() * noise

    return {**model, "params": tree.map(drawn, model["params"])}


def perturbed(model: Model, scale: float, key: Tensor) -> Model:
    """The same model with noise on every tensor of parameters: `scale` times the spread that it has."""
    place = iter(range(len(tree.leaves(model["params"]))))

    def moved(x: Tensor) -> Tensor:
        noise = rng.normal(rng.fold(key, next(place)), tuple(x.shape)).to(x.device, x.dtype)
        return x + scale * (x - x.mean()).pow(2).mean().sqrt() * noise

    return {**model, "params": tree.map(moved, model["params"])}
