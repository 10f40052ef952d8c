"""What a captured graph computes twice from the same inputs is computed once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch.fx import GraphModule, Node


def merge_repeated(graph: GraphModule) -> None:
    """Every later copy of an operation becomes the first one; nothing changes where a graph writes in place.

    What is handed out stays a tensor of its own: whoever gets it may write in it.
    """
    if mutates(graph):
        return
    first: dict[Hashable, Node] = {}
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or _drawn(node) or any(user.op == "output" for user in node.users):
            continue
        earlier = first.setdefault((node.target, _hashable(node.args), _hashable(node.kwargs)), node)
        if earlier is not node:
            node.replace_all_uses_with(earlier)


def mutates(graph: GraphModule) -> bool:
    """Does any operation write in place?"""
    schemas = [getattr(node.target, "_schema", None) for node in graph.graph.nodes if node.op == "call_function"]
    return any(schema is not None and schema.is_mutable for schema in schemas)


def _drawn(node: Node) -> bool:
    """Is it another number each time it is asked?"""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _hashable(x: Any) -> Hashable:
    """Arguments as a key: 1, 1.0 and True are three different ones."""
    if isinstance(x, list | tuple):
        return tuple(_hashable(v) for v in x)
    if isinstance(x, dict):
        return tuple((k, _hashable(v)) for k, v in x.items())
    return x if isinstance(x, Node) else (type(x), repr(x))
