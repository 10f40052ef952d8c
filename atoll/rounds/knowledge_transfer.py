"""Rounds in which clients send what they make of each example, and the server answers with what it makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll import rng, tree
from atoll.clock import Floats
from atoll.core import (
    Algorithm,
    Chain,
    Context,
    Model,
    Outcome,
    Part,
    Play,
    Program,
    Reducer,
    Round,
    RoundTraits,
    Traffic,
    Train,
    Trained,
    TransfersKnowledge,
    transform_name,
)
from atoll.errors import ConfigError
from atoll.reducers import Collect, Mean
from atoll.rounds.central import Central
from atoll.rounds.foretold_bytes import foretold_bytes
from atoll.rounds.server_step import client_key, server_state
from atoll.tree import Tree
from atoll.wire import wire_bytes

ANSWERS = "answers"  # in the state: {"logits": (N, M, K), "known": (N, M)}, M the examples of the largest client
_ROWS = "clients send features, logits and labels of single examples, and no update that could be summed."
_SEEN = (
    "the server sees features and labels of every example, which no noise on updates or gradients covers: there is no "
    "epsilon. Leave the noise out, or use algorithm.name = 'fedavg'."
)
_REFUSED: dict[Part, str] = {
    "secure": f"{_ROWS} Leave [secure] out, or use algorithm.name = 'fedavg'.",
    "broadcast": "every client is sent other numbers, those of its own examples. Leave it out.",
    "server.root": f"{_ROWS} Leave it out.",
    "attack": f"{_ROWS} Use an attack on data, such as label_flip.",
    "privacy.canaries": _SEEN,
    "noise": _SEEN,
    "local.privacy": _SEEN,
}


@dataclass(frozen=True, eq=False)
class KnowledgeTransfer(Round):
    """Clients train; then each reads its examples once more and sends a row for each; the server learns from them all.

    A client is sent the server's answers for its examples when it comes the next time. All clients of a round train
    as one stack, and so does the pass after it; the server learns from their rows in batches.
    """

    sizes: Tensor  # (N,) examples that each client reads in a round
    steps: int  # that read all examples of the largest client once

    @classmethod
    def around(
        cls, inner: Round, algorithm: Algorithm, chain: Chain, sizes: Tensor, batch: int, max_steps: int | None
    ) -> Round:
        """The round itself, unless clients send rows for single examples; a ConfigError for what cannot hold then."""
        if not isinstance(algorithm, TransfersKnowledge):
            return inner
        if not isinstance(inner, Central):
            raise ConfigError(
                f"round.name: {type(algorithm).__name__} trains a part of the model on a server, which all clients "
                "send features to. Use round.name = 'central'."
            )
        for i, transform in enumerate(chain.transforms):
            raise ConfigError(
                f"transform.{i}: {transform_name(transform)} works on updates, and {type(algorithm).__name__} sends "
                "features, logits and labels of single examples, which it neither bounds nor hides. Leave it out."
            )
        largest = max(1, int(sizes.max()))
        width = min(batch, largest) or largest
        read = sizes if max_steps is None else sizes.clamp(max=max_steps * width)
        return cls(read, -(-largest // width))

    def traits(self) -> RoundTraits:
        return RoundTraits(sends_rows=True, refuses=_REFUSED)

    def reducer(self, named: Reducer[Any]) -> Reducer[Any]:
        if not isinstance(named, Mean):
            raise ConfigError(
                f"reducer.name: clients send rows for single examples, which the server learns from and does not "
                f"average, so {type(named).__name__} would not be used. Leave reducer out."
            )
        return Collect()

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        state = server_state(ctx, model, key)
        one = tree.select(ctx.algorithm.send(state["server"]), ("logits", "known"))
        return {**state, ANSWERS: tree.map(torch.clone, tree.stack(one, ctx.population))}

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        ids, participation = ctx.sample()
        sent, chain = self.broadcast(ctx, state, ids)
        trained = yield ctx.train(sent, chain, ids, client_key(key), per_client=True)
        asked = torch.from_numpy(np.unique(ids[trained.order.cpu()].numpy()))
        extracted = yield self._extraction(ctx, asked, key)
        new, changed = self._taught(ctx, state, asked, extracted, key)
        down, up = self.message_bytes(ctx, state, ids)
        columns = trained.examples, trained.columns, Traffic(int(np.sum(up)), int(np.sum(down)))
        return new, Outcome(ids, participation, *columns, changed)

    def broadcast(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[Tree, Tree]:
        sent, seen = ctx.algorithm.send(state["server"]), ctx.chain.client_view(state["chain"])
        at = ids.to(state[ANSWERS]["known"].device)
        tower = tree.map(lambda x: x.expand(len(ids), *x.shape), sent["params"])
        return {"params": tower, **tree.rows(state[ANSWERS], at)}, seen

    def message_bytes(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[Floats, Floats]:
        """Answers for the examples that there are any for; a row up for each example that is read."""
        algorithm, server = _transferring(ctx.algorithm), state["server"]
        known = state[ANSWERS]["known"].cpu()[ids].sum(1).long().tolist()
        down = [wire_bytes(algorithm.answer(server, n)) for n in known]
        up = [wire_bytes(algorithm.report(server, n)) for n in self.sizes[ids].tolist()]
        return np.array(down, dtype=np.float64), np.array(up, dtype=np.float64)

    def total_bytes(
        self, ctx: Context, state: Tree, first: Outcome, pools: Callable[[int], Tensor], rounds: int
    ) -> dict[str, int]:
        """Rows up whenever a client comes; answers down from its second time on."""
        return foretold_bytes(self, ctx, state, pools, rounds)

    def lengths_vary(self, ctx: Context, state: Tree) -> bool:
        return False

    def after(self, ctx: Context, state: Tree, ids: Tensor) -> Tree:
        """The server has answers for all examples of whoever came."""
        known: Tensor = state[ANSWERS]["known"]
        rows = torch.arange(known.shape[1]) < self.sizes[ids][:, None]
        new = known.index_copy(0, ids.to(known.device), rows.to(known))
        return {**state, ANSWERS: {**state[ANSWERS], "known": new}}

    def _extraction(self, ctx: Context, ids: Tensor, key: Tensor) -> Train:
        """The pass over all examples of clients that have trained."""
        program, none = _extracting(ctx.program), {"none": torch.zeros((), device=tree.device(ctx.program.like))}
        settings: Tree = {"algorithm": {}, "chain": {}}
        more: dict[str, Any] = {"client_state": "read", "row_table": ctx.row_table, "max_steps": self.steps}
        return Train(program, settings, none, {}, ids, rng.fold_name(key, "extract"), ctx.order, **more)

    def _taught(self, ctx: Context, state: Tree, asked: Tensor, extracted: Trained, key: Tensor) -> tuple[Tree, bool]:
        """The state after the server has learned, in the order of clients' ids; False where nobody sent a row."""
        order = extracted.order.cpu()
        table = extracted.partial.updates.value
        if not len(order):
            return state, False
        table = tree.rows(table, order.argsort().to(table["read"].device))
        client, place = table["read"].nonzero(as_tuple=True)
        if not len(client):
            return state, False
        rows = {name: x[client, place] for name, x in table.items() if name != "read"}
        server, logits = _transferring(ctx.algorithm).teach(state["server"], rows, rng.fold_name(key, "teach"))
        at = asked[order.sort().values].to(client.device)[client], place
        answers, known = state[ANSWERS]["logits"], state[ANSWERS]["known"]
        answers = answers.index_put(at, logits.to(answers.dtype))
        known = known.index_put(at, torch.ones_like(place, dtype=known.dtype))
        return {**state, "server": server, ANSWERS: {"logits": answers, "known": known}}, True


@lru_cache(maxsize=8)
def _extracting(program: Program) -> Program:
    """What reads the examples; one object for all rounds."""
    algorithm = _transferring(program.algorithm).extraction()
    none = tree.zeros_like(program.like)
    return Program(algorithm, Chain(), Collect(), none)


def _transferring(algorithm: Algorithm) -> TransfersKnowledge:
    assert isinstance(algorithm, TransfersKnowledge), "`around` lets no other in"
    return algorithm
