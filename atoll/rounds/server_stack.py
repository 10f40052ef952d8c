"""Several servers side by side: their states are rows of one tree, and each steps on the updates of its own clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Columns, Context, Info, Model, Outcome, Participation, Stack, Total, Traffic, Trained
from atoll.rounds.server_step import server_state, server_step
from atoll.tree import Tree

PARTS = ("server", "chain", "reducer")


class StackStep(NamedTuple):
    """What the servers have after a step; `changed` is False where none of them heard of anybody."""

    state: Tree  # {"server", "chain", "reducer"}, a row for each server
    diagnostics: Tree
    changed: bool


def stacked_servers(ctx: Context, models: Sequence[Model], key: Tensor) -> Tree:
    """What servers with these models hold before the first round."""
    states = [server_state(ctx, model, key) for model in models]
    return tree.map(lambda *xs: torch.stack(xs), *states)  # type: ignore[no-any-return]


def sent_rows(ctx: Context, state: Tree, which: Tensor) -> tuple[Tree, Tree]:
    """What clients are sent by the servers `which`, and the chain's state as they see it: a row for each client."""
    here = which.to(device_of(state))
    sent = torch.func.vmap(ctx.algorithm.send)(tree.rows(state["server"], here)) if len(here) else _no_rows(ctx, state)
    return sent, _rows(ctx.chain.client_view(state["chain"]), here)


def all_sent(ctx: Context, state: Tree) -> Tree:
    """What all servers send, one row each."""
    return torch.func.vmap(ctx.algorithm.send)(state["server"])  # type: ignore[no-any-return]


def step_groups(ctx: Context, state: Tree, trained: Trained, which: Tensor, key: Tensor) -> StackStep:
    """Each server steps on the updates of its clients, `which` in the order of the request; the others stay."""
    of_row, changed = which[trained.order.cpu()], False
    said: Tree = {}
    for number in sorted(set(which.tolist())):
        inside = (of_row == number).nonzero()[:, 0]
        alone = _of_some(trained, inside, which == number)
        row = tree.map(lambda x, n=number: x[n], tree.select(state, PARTS))
        step = server_step(ctx, row, alone, key if number == 0 else rng.fold_name(key, "server", number))
        state = {**state, **written(tree.select(state, PARTS), number, step.state)}
        said |= {str(number): step.diagnostics} if step.diagnostics else {}
        changed = changed or step.changed
    return StackStep(tree.select(state, PARTS), said, changed)


def step_alone(ctx: Context, state: Tree, trained: Trained, which: Tensor, key: Tensor) -> Tree:
    """The same where every server has one client: all that have nothing on the way back step as one stack."""
    which = which[trained.order.cpu()]
    if not len(which):
        return tree.select(state, PARTS)
    here, updates = which.to(device_of(state)), trained.partial.updates
    rows = {"server": tree.rows(state["server"], here), "value": updates.value, "weight": updates.weight}
    chain = _rows(state["chain"], here)
    keys = [(rng.fold_host(key, int(n)), rng.fold_name(key, "apply", int(n))) for n in which]  # on the way back, apply
    if ctx.chain.has_server_side():  # which may do anything: one by one
        each = [_alone(ctx, tree.rows(rows, i), _rows(chain, i), *pair) for i, pair in enumerate(keys)]
        new = tree.map(lambda *xs: torch.stack(xs), *each)
    else:
        apply = torch.func.vmap(lambda row, k: _alone(ctx, row, chain, key, k)["server"])
        new = {"server": apply(rows, torch.stack([k for _, k in keys]).to(here.device)), "chain": chain}
    before = tree.select(state, ("server", "chain"))
    return {**tree.select(state, PARTS), **tree.map(lambda old, x: old.index_copy(0, here, x), before, new)}


def written(state: Tree, number: int, row: Tree) -> Tree:
    """The same with this row in this place."""
    at = torch.tensor([number])
    return tree.map(lambda old, x: old.index_copy(0, at.to(old.device), x[None].to(old.dtype)), state, row)  # type: ignore[no-any-return]


def joined_outcome(
    trained: Sequence[Trained],
    ids: Tensor,
    participation: Participation,
    traffic: Traffic,
    changed: bool,
    diagnostics: Tree | None = None,
) -> Outcome:
    """Of several requests, one after the other, whose clients are `ids`."""
    examples = torch.cat([part.examples for part in trained])

    def columns() -> Columns:
        parts = [part.columns() for part in trained]
        starts = [sum(len(part.loss) for part in parts[:i]) for i in range(len(parts))]
        order = torch.cat([part.order.cpu() + start for part, start in zip(parts, starts, strict=True)])
        uploads = [part.upload for part in parts if part.upload is not None]
        loss, finite = (torch.cat([getattr(part, name).cpu() for part in parts]) for name in ("loss", "finite"))
        return Columns(loss, finite, order, torch.cat(uploads) if uploads else None)

    return Outcome(ids, participation, examples, columns, traffic, changed, diagnostics or {})


def device_of(state: Tree) -> torch.device:
    """Where the servers are."""
    return tree.device(state["server"])


def _of_some(trained: Trained, rows: Tensor, asked: Tensor) -> Trained:
    """What came of some of the clients: these rows of the stack, of those who were asked."""
    stack, here = trained.partial, rows.to(trained.partial.updates.weight.device)
    info = Info(*(x[rows.to(x.device)] for x in stack.info))
    value = _rows(stack.updates.value, here)
    part = Stack(stack.updates._replace(value=value, weight=stack.updates.weight[here]), info)
    return Trained(part, trained.examples[asked], trained.columns, float(info.examples.sum()))


def _alone(ctx: Context, row: Tree, chain: Tree, key: Tensor, apply_key: Tensor) -> Tree:
    """One server: a sum over one update."""
    one = torch.ones_like(row["weight"])
    weight = torch.where(row["weight"] > 0, row["weight"], one)  # a client without examples changes nothing
    total = Total(tree.scale(row["value"], row["weight"]), weight, one, invited=1)
    total, chain = ctx.chain.server(total, chain, key)
    return {"server": ctx.algorithm.apply(row["server"], total, apply_key), "chain": chain}


def _no_rows(ctx: Context, state: Tree) -> Tree:
    """For nobody."""
    return tree.rows(all_sent(ctx, state), slice(0, 0))


def _rows(rows: Tree, index: Tensor | int) -> Tree:
    return tree.rows(rows, index) if tree.leaves(rows) else rows
