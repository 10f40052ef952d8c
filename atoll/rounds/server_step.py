"""The server's half of a round: finish the aggregate, the transforms' way back, and the algorithm's step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from atoll import rng
from atoll.core import Context, Total
from atoll.tree import Tree


class Step(NamedTuple):
    """What the server has after it; `changed` is False where nobody contributed."""

    server: Tree
    chain: Tree
    reducer: Tree
    diagnostics: Tree
    changed: bool


def client_key(key: Tensor) -> Tensor:
    """What the clients of a round draw from."""
    return rng.fold_name(key, "clients")


def server_step(
    ctx: Context, server: Tree, chain: Tree, reducer: Tree, partial: Any, rows: float, invited: int, key: Tensor
) -> Step:
    """What one server makes of a partial aggregate over clients that hold so many rows, `invited` of them.

    Where nobody contributed there is nothing to apply, unless noise must be released all the same.
    """
    total, reducer, chosen = ctx.program.reducer.finish(partial, reducer, rng.fold_name(key, "reduce"))
    if _empty(total, rows) and not ctx.chain.releases():
        return Step(server, chain, reducer, chosen, False)
    total, chain = ctx.chain.server(replace(total, invited=invited), chain, rng.fold_name(key, "server"))
    diagnostics = {**chosen, **ctx.chain.diagnostics(chain)}
    return Step(ctx.algorithm.apply(server, total, rng.fold_name(key, "apply")), chain, reducer, diagnostics, True)


def _empty(total: Total, rows: float) -> bool:
    """Does nobody count? A device is asked only where clients hold nothing."""
    return rows == 0 and not bool(total.weight > 0)
