"""A captured graph without what does nothing: views to the same shape, products with one, constants made each time.

On a CPU what is computed twice is computed once: a clip and the bound that it is held against read the same lengths.
Every number stays the same, bit for bit; a small model's step has a fifth fewer operations to start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.graph import CodeGen

from atoll.engines.fx_descent import quicken_descent
from atoll.engines.fx_repeated import merge_repeated, mutates
from atoll.engines.native_calls import call_natively

aten = torch.ops.aten
_SHAPES = (aten.view.default, aten.expand.default, aten._unsafe_view.default, aten.slice.Tensor)
_VIEWS = {
    *_SHAPES,
    aten.alias.default,
    aten.detach.default,
    aten.transpose.int,
    aten.permute.default,
    aten.unsqueeze.default,
    aten.squeeze.dims,
    aten.squeeze.dim,
    aten.select.int,
    aten.t.default,
}
_FILLED = {aten.ones_like.default: 1.0, aten.zeros_like.default: 0.0, aten.new_zeros.default: 0.0}
_MADE = (aten.arange.default, aten.arange.start, aten.zeros.default, aten.ones.default, aten.full.default)


def lean(graph: GraphModule, device: torch.device, fold: bool = True) -> Callable[..., list[Tensor]]:
    """The graph as a function of its inputs, called without pytree's flattening. Compilers `fold` constants better."""
    ones: set[Node] = set()
    for number, node in enumerate(list(graph.graph.nodes)):
        if fold and node.op == "call_function":
            _fold(graph, node, f"_constant{number}", device, ones)
    if fold and device.type == "cpu" and not mutates(graph):
        ones |= {node for node in graph.graph.nodes if node.target is aten.ones_like.default and node.users}
    for node in list(graph.graph.nodes):
        same = _same(node, ones) if node.op == "call_function" else None
        if same is not None:
            node.replace_all_uses_with(same)
    if fold and device.type == "cpu":  # recorded steps of a GPU write in what was handed to them
        merge_repeated(graph)
    if fold and device.type == "cuda":
        quicken_descent(graph)
    graph.graph.eliminate_dead_code()
    if fold and device.type == "cpu":  # a GPU replays kernels without calling anything
        call_natively(graph)
    graph.graph.set_codegen(CodeGen())
    graph.recompile()
    return graph.forward  # type: ignore[no-any-return]


def _fold(graph: GraphModule, node: Node, name: str, device: torch.device, ones: set[Node]) -> None:
    """What depends on shapes alone is made once, unless something writes in it."""
    value = _value(node, device)
    if value is None or _written(node):
        return
    graph.register_buffer(name, value, persistent=False)
    with graph.graph.inserting_before(node):
        constant = graph.graph.get_attr(name)
    constant.meta = dict(node.meta)
    node.replace_all_uses_with(constant)
    if node.target is aten.ones_like.default:
        ones.add(constant)


def _value(node: Node, device: torch.device) -> Tensor | None:
    known = _known(node)
    if known is None:
        return None
    if node.target in _MADE and not node.all_input_nodes:
        constructor: Any = node.target
        return constructor(*node.args, **node.kwargs)  # type: ignore[no-any-return]
    if node.target in _FILLED:
        return torch.full(known.shape, _FILLED[node.target], dtype=known.dtype, device=device)
    if node.target is aten._to_copy.default and not node.all_input_nodes and device.type == "cpu":  # of a number
        return aten._to_copy.default(*node.args, **node.kwargs)  # type: ignore[no-any-return]
    return None


def _written(node: Node) -> bool:
    """Is it changed in place, or handed out, as it is or as a view?"""
    for user in node.users:
        if user.op == "output":
            return True
        schema = getattr(user.target, "_schema", None)
        if schema is None or schema.is_mutable or (user.target in _VIEWS and _written(user)):
            return True
    return False


def _same(node: Node, ones: set[Node]) -> Node | None:
    """The input that this operation would give back."""
    first = node.args[0] if node.args else None
    if not isinstance(first, Node):
        return None
    if node.target in _SHAPES and _shape(first) is not None and _shape(first) == _shape(node):
        return first
    if node.target is aten.alias.default or (node.target is aten.mul.Scalar and node.args[1] == 1):
        return first
    if node.target is aten.bitwise_not.default and first.target is aten.bitwise_not.default:
        return first.args[0]  # type: ignore[return-value]
    if node.target is aten.abs.default and first in ones and not _written(node):
        return first
    if node.target is aten.permute.default and list(node.args[1]) == list(range(len(node.args[1]))):  # type: ignore[arg-type]
        return first
    if node.target is aten.transpose.int and first.target is aten.transpose.int and node.args[1:] == first.args[1:]:
        return first.args[0]  # type: ignore[return-value]
    if node.target is aten.mul.Tensor:
        for one, other in ((node.args[0], node.args[1]), (node.args[1], node.args[0])):
            if one in ones and isinstance(other, Node) and _alike(other, node):
                return other
    return None


def _known(node: Node) -> Any:
    metadata = node.meta.get("tensor_meta")
    return metadata if hasattr(metadata, "shape") else None


def _shape(node: Node) -> Any:
    known = _known(node)
    return None if known is None else known.shape


def _alike(a: Node, b: Node) -> bool:
    first, second = _known(a), _known(b)
    return first is not None and second is not None and (first.shape, first.dtype) == (second.shape, second.dtype)
