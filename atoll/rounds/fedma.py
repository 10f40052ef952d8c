"""FedMA: hidden units of clients' networks are matched before they are averaged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import (
    Algorithm,
    Context,
    Count,
    Model,
    Outcome,
    Play,
    Reducer,
    Round,
    RoundTraits,
    SetByBind,
    Stack,
    Task,
    Trained,
    UnitLayer,
    transform_name,
)
from atoll.errors import ConfigError
from atoll.reducers import Collect, Mean
from atoll.rounds.server_step import client_key, server_state, server_step
from atoll.rounds.unit_matching import check_exchangeable, in_order, matching_orders
from atoll.tree import Tree


@dataclass(frozen=True)
class FedMA(Round):
    """Central rounds whose server matches the hidden units of all networks before it averages (Wang et al., 2020).

    `match = false` averages networks as they are, which matching is compared to. With `own_start` every client begins
    the first round from weights of its own: the entries of every tensor of the server's model in an order that the
    client draws, which is another draw of the same kind. From the second round on all begin from the server's model.
    One round is the one-shot method. The global network has the size of the local ones: it does not grow, and layers
    are not frozen and trained again one by one, as they are in the paper.
    """

    own_start: bool = True
    match: bool = True
    turns: Count = 3
    layers: Annotated[tuple[UnitLayer, ...], SetByBind()] = ()  # of the model; until it is known, nothing is matched

    def for_task(self, task: Task, model: Model) -> Round:
        layers = task.unit_layers()
        check_exchangeable(layers, model)
        return replace(self, layers=layers)

    def traits(self) -> RoundTraits:
        return RoundTraits(sends_rows=self.own_start)

    def reducer(self, named: Reducer[Any]) -> Reducer[Any]:
        if not isinstance(named, Mean):
            raise ConfigError(
                f"reducer.name: fedma averages networks once their units are matched, so {type(named).__name__} would "
                "not be used. Leave reducer out, or use round.name = 'central'."
            )
        return Collect()

    def check(self, algorithm: Algorithm) -> None:
        traits, name = algorithm.traits(), type(algorithm).__name__
        if traits.pooled or traits.partial or traits.counts_clients or traits.groups is not None:
            raise ConfigError(
                f"round.name: fedma matches whole networks that a server averages, and {name} has others, or keeps "
                "more of them. Use round.name = 'central', or an algorithm such as fedavg or fedprox."
            )

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        if "delta" not in ctx.update_like:
            what = "needs updates that are changes of a model"
            raise ConfigError(f"round.name: fedma {what}. Use algorithm.name = 'fedavg', or round.name = 'central'.")
        reshaping = [t for t in ctx.program.chain.transforms if t.reshapes]
        if reshaping:
            raise ConfigError(
                f"transform: {transform_name(reshaping[0])} sends something of another shape than the model, in which "
                "fedma finds no units. Use top_k or qsgd, or round.name = 'central'."
            )
        first = {"key": rng.fold_name(key, "own start"), "over": torch.zeros(())}
        return {**server_state(ctx, model, key), "start": first}

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        ids, participation = ctx.sample()
        sent, chain = self.broadcast(ctx, state, ids)
        trained = yield ctx.train(sent, chain, ids, client_key(key), per_client=self.own_start)
        began = sent["params"] if self.own_start else tree.stack(sent["params"], len(ids))
        trained, shift = self._matched(trained, began, state["server"]["params"])
        step = server_step(ctx, state, trained, key)
        server = {**step.state["server"], "params": tree.add(step.state["server"]["params"], shift)}
        wire = ctx.algorithm.send(state["server"])
        columns = trained.examples, trained.columns, ctx.traffic(len(ids), wire)
        start = {**state["start"], "over": state["start"]["over"].clamp(min=float(step.changed))}
        outcome = Outcome(ids, participation, *columns, step.changed, step.diagnostics)
        return {**step.state, "server": server, "start": start}, outcome

    def broadcast(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[Tree, Tree]:
        sent, seen = ctx.algorithm.send(state["server"]), ctx.chain.client_view(state["chain"])
        if not self.own_start:
            return sent, seen
        rows = tree.map(lambda x: x.expand(len(ids), *x.shape), sent)
        seen = tree.map(lambda x: x.expand(len(ids), *x.shape), seen) if tree.leaves(seen) else seen
        if len(ids) and not bool(state["start"]["over"]):
            own = torch.func.vmap(lambda id: _shuffled(sent["params"], rng.fold(state["start"]["key"], id)))
            rows = {**rows, "params": own(ids.to(tree.device(sent["params"])))}
        return rows, seen

    def _matched(self, trained: Trained, began: Tree, server: Tree) -> tuple[Trained, Tree]:
        """Updates with their units in one order; and how far from the server's model they began, on average."""
        stack: Stack = trained.partial
        delta, weights = stack.updates.value["delta"], stack.updates.weight
        if not len(stack) or not bool(weights.sum() > 0):
            return trained, tree.zeros_like(server)
        began = tree.rows(began, trained.order.to(tree.device(began)))
        if self.layers and self.match:
            orders = matching_orders(tree.add(began, delta), weights, self.layers, self.turns)
            began, delta = (in_order(rows, self.layers, orders) for rows in (began, delta))
        shares = weights / weights.sum()
        shift = tree.map(lambda rows, x: torch.einsum("c,c...->...", shares, rows - x), began, server)
        updates = stack.updates._replace(value={**stack.updates.value, "delta": delta})
        return replace(trained, partial=Stack(updates, stack.info)), shift


def _shuffled(params: Tree, key: Tensor) -> Tree:
    """Every tensor with its entries in a random order."""
    return {
        name: x.flatten()[torch.argsort(rng.uniform(rng.fold(key, i), (x.numel(),)))].reshape(x.shape)
        for i, (name, x) in enumerate(params.items())
    }
