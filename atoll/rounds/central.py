"""One server, many clients: the round of most of federated learning."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.algorithms.local import model_of
from atoll.core import Algorithm, Chain, Cohort, Job, Model, Result, Total, begun
from atoll.engines import RowStore
from atoll.reducers import Mean
from atoll.rounds.context import Parts, clients_key
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
        parts.chain.client_view(state),
        cohort,
        parts.memory,
        clients_key(key),
        meanwhile=parts.meanwhile,
    )
    if not len(cohort) or (parts.private is not None and parts.private.planted is not None):  # canaries look once
        result = parts.engine.run(job) if len(cohort) else nobody()
        after = _applied(parts, server, state, key, result.total, _rows(cohort, result))
    else:
        early = begun(parts.engine, job)
        after = _applied(parts, server, state, key, early.total, float(cohort.examples.sum()))
        result = early.result()
        if not bool(result.finite.all()):  # somebody had to be left out
            after = _applied(parts, server, state, key, result.total, _rows(cohort, result))
    result = replace(result, total=after.total, signal=after.signal)
    if after.total is not None and parts.statistics is not None:
        again = _reestimated(parts, parts.statistics, cohort, after.server, rng.fold_name(key, "statistics"))
        return again, after.state, result
    return after.server, after.state, result


class _After(NamedTuple):
    """What a round leaves; `total` is None where nobody came, nobody could be used, or nobody counts."""

    server: Tree
    state: Tree
    total: Total | None
    signal: Tensor | None = None


def _applied(parts: Parts, server: Tree, state: Tree, key: Tensor, total: Total | None, rows: float) -> _After:
    """What the server makes of a total over clients that hold so many rows."""
    found, private = total, parts.private
    if private is not None:
        total = private.sum(total)
    elif total is not None and rows == 0 and not bool(total.weight > 0):  # a mean over nothing
        total = None
    if total is None:
        return _After(server, state, None)
    if private is None:
        signal = None
        total, state = parts.layers.server(total, state, rng.fold_name(key, "server"))
    else:
        signal = private.signal(total)
        total, state = private.server(parts.layers, total, state, key)
    return _After(parts.now.apply(server, total), state, found, signal)


def _rows(cohort: Cohort, result: Result) -> float:
    """Of all who could be used: a device is asked about weights only where it is none."""
    return float(cohort.examples.cpu().numpy() @ result.finite.cpu().numpy())


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
