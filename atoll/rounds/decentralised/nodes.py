"""Every node as the server of its own update: one stack of servers."""

from __future__ import annotations

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Context, Stack, Total
from atoll.tree import Tree


def node_steps(ctx: Context, state: Tree, nodes: Tensor, stack: Stack, key: Tensor) -> Tree:
    """Each of these nodes as the server of its own update: the transforms' way back, then the algorithm's step."""
    if not len(nodes):
        return state
    here = nodes.to(node_device(state))
    rows = {"server": tree.rows(state["server"], here), "value": stack.updates.value, "weight": stack.updates.weight}
    chain = tree.rows(state["chain"], here) if tree.leaves(state["chain"]) else state["chain"]
    for_apply = rng.fold_name_each(key, "apply", nodes)
    if ctx.chain.has_server_side():  # which may do anything: one by one
        pairs = zip(rng.fold_each(key, nodes), for_apply, strict=True)
        own = [_alone(ctx, tree.rows(rows, i), _row(chain, i), *pair) for i, pair in enumerate(pairs)]
        new = tree.map(lambda *xs: torch.stack(xs), *own)
    else:
        apply = torch.func.vmap(lambda row, k: _alone(ctx, row, chain, key, k)["server"])
        new = {"server": apply(rows, for_apply.to(here.device)), "chain": chain}
    old = {"server": state["server"], "chain": state["chain"]}
    return {**state, **tree.map(lambda was, x: was.index_copy(0, here, x), old, new)}


def node_copies(state: Tree, nodes: int) -> Tree:
    """The same for every node, each with its own memory."""
    return tree.map(torch.clone, tree.stack(state, nodes))  # type: ignore[no-any-return]


def node_device(state: Tree) -> torch.device:
    """Where the nodes' models are."""
    return tree.leaves(state["server"])[0].device


def consensus_distance(params: Tree) -> Tensor:
    """sqrt(1/N sum_i |x_i - mean x|^2) of a stack of N models."""
    squares = [(x - x.mean(0)).flatten(1).square().sum(1) for x in tree.leaves(params)]
    return torch.stack(squares).sum(0).mean().sqrt() if squares else torch.zeros(())


def _alone(ctx: Context, row: Tree, chain: Tree, key: Tensor, apply_key: Tensor) -> Tree:
    """One node: a sum over its own update alone."""
    one = torch.ones_like(row["weight"])
    weight = torch.where(row["weight"] > 0, row["weight"], one)  # a node without examples stays where it is
    total = Total(tree.scale(row["value"], row["weight"]), weight, one, invited=1)
    total, chain = ctx.chain.server(total, chain, key)
    return {"server": ctx.algorithm.apply(row["server"], total, apply_key), "chain": chain}


def _row(rows: Tree, i: int) -> Tree:
    return tree.rows(rows, i) if tree.leaves(rows) else rows
