"""One server, many clients: the round of most of federated learning."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.algorithms.local import model_of
from atoll.core import Algorithm, Chain, Cohort, Job, Model, Result
from atoll.engines import RowStore
from atoll.reducers import Mean
from atoll.rounds.parts import Parts, clients_key
from atoll.tree import Tree

_PLAIN = Chain()


def central_round(parts: Parts, cohort: Cohort, server: Tree, state: Tree, key: Tensor) -> tuple[Tree, Tree, Result]:
    """Send, train, reduce, transform back, apply."""
    job = Job(
        parts.algorithm,
        parts.chain,
        parts.reducer,
        parts.settings,
        parts.now.send(server),
        parts.chain.seen(state),
        cohort,
        parts.memory,
        clients_key(key),
        meanwhile=parts.meanwhile,
    )
    result = parts.engine.run(job) if len(cohort) else nobody()
    total, private = result.total, parts.private
    if private is not None:
        total = private.sum(total)
    elif total is not None and _weightless(cohort, result):
        total = None
    if total is None:  # nobody came, nobody could be used, or nobody counts
        return server, state, replace(result, total=None)
    if private is None:
        total, state = parts.layers.server(total, state, rng.child(key, "server"))
    else:
        result = replace(result, signal=private.signal(total))
        total, state = private.server(parts.layers, total, state, key)
    server = parts.now.apply(server, total)
    if parts.statistics is not None:
        server = _reestimated(parts, parts.statistics, cohort, server, rng.child(key, "statistics"))
    return server, state, result


def _weightless(cohort: Cohort, result: Result) -> bool:
    """Is a mean over nothing asked for? A device is asked only where nobody who could be used holds a row."""
    rows = cohort.examples.cpu().numpy() @ result.finite.cpu().numpy()
    return rows == 0 and not bool(result.total.weight > 0)


def _reestimated(parts: Parts, statistics: Algorithm, cohort: Cohort, server: Tree, key: Tensor) -> Tree:
    """BatchNorm's statistics of the new model on the cohort's data, in a second pass."""
    none = RowStore({"algorithm": {}, "chain": {}}, 1, tree.leaves(server)[0].device)
    settings: Tree = {"algorithm": {}, "chain": {}}
    job = Job(statistics, _PLAIN, Mean(), settings, statistics.send(server), {}, cohort, none, key)
    total = parts.engine.run(job).total
    return server if total is None else statistics.apply(server, total)


def nobody() -> Result:
    """What comes of a round without clients."""
    nothing = torch.zeros(0)
    return Result(None, nothing, nothing.bool(), nothing.long())


@dataclass(frozen=True)
class Central:
    """One server sends, every client of the cohort trains, the server applies the reduced update."""

    def init(self, algorithm: Algorithm, model: Model, population: int) -> Tree:
        """The server's state."""
        return algorithm.init(model)

    def run(self, parts: Parts, cohort: Cohort, server: Tree, state: Tree, key: Tensor) -> tuple[Tree, Tree, Result]:
        """One round."""
        return central_round(parts, cohort, server, state, key)

    def model(self, server: Tree) -> Model:
        """The model that central metrics measure."""
        return model_of(server)

    def sent(self, now: Algorithm, server: Tree, ids: Tensor) -> tuple[Tree, bool]:
        """What these clients would be sent, and whether each gets its own."""
        return now.send(server), False
