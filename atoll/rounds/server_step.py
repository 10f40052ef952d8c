"""The server's half of a round: finish the aggregate, the transforms' way back, and the algorithm's step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from atoll import rng
from atoll.core import Context, Model, Total, Trained
from atoll.tree import Tree


class ServerStep(NamedTuple):
    """What the server has after it; `changed` is False where nobody contributed."""

    state: Tree  # {"server", "chain", "reducer"}
    diagnostics: Tree
    changed: bool


def client_key(key: Tensor) -> Tensor:
    """What the clients of a round draw from."""
    return rng.fold_name(key, "clients")


def server_key(key: Tensor) -> Tensor:
    """What the transforms draw from on the server."""
    return rng.fold_name(key, "server")


def server_state(ctx: Context, model: Model, key: Tensor) -> Tree:
    """What a server holds before the first round."""
    chain, _ = ctx.chain.init(ctx.update_like)
    reducer = ctx.program.reducer.init(ctx.program.like)
    return {"server": ctx.algorithm.init(model, key), "chain": chain, "reducer": reducer}


def server_step(
    ctx: Context, state: Tree, trained: Trained, key: Tensor, adjusted: Callable[[Total], Total] | None = None
) -> ServerStep:
    """What a server makes of what its clients came to. Other parts of the state are not looked at.

    Where nobody contributed there is nothing to apply, unless noise must be released all the same. `adjusted`: what it
    does to the total itself, between the transforms' way back and the algorithm's step.
    """
    finished = ctx.program.reducer.finish(trained.partial, state["reducer"], rng.fold_name(key, "reduce"))
    total, reducer, diagnostics = finished
    invited = len(trained.examples)
    if _empty(total, trained.rows) and not ctx.chain.releases(invited):
        unchanged = {"server": state["server"], "chain": state["chain"], "reducer": reducer}
        return ServerStep(unchanged, diagnostics, False)
    total, chain = ctx.chain.server(replace(total, invited=invited), state["chain"], server_key(key))
    total = total if adjusted is None else adjusted(total)
    server = ctx.algorithm.apply(state["server"], total, rng.fold_name(key, "apply"))
    new = {"server": server, "chain": chain, "reducer": reducer}
    said = {name: server[name] for name in ctx.algorithm.traits().records}
    return ServerStep(new, {**diagnostics, **ctx.chain.diagnostics(chain), **said}, True)


def _empty(total: Total, rows: float) -> bool:
    """Does nobody count? A device is asked only where clients hold nothing."""
    return rows == 0 and not bool(total.weight > 0)
