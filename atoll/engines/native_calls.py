"""A captured graph's operations by their names in Python: the same kernels, started in half the time.

`torch.ops` takes its arguments apart as for any operator that there may be; torch's own functions know theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

aten = torch.ops.aten
_NATIVE: dict[Any, Callable[..., Any]] = {
    aten.view.default: torch.Tensor.view,
    aten.expand.default: torch.Tensor.expand,
    aten.transpose.int: torch.transpose,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.squeeze.dims: torch.squeeze,
    aten.bmm.default: torch.bmm,
    aten.mm.default: torch.mm,
    aten.baddbmm.default: torch.baddbmm,
    aten.add.Tensor: torch.add,
    aten.sub.Tensor: torch.sub,
    aten.mul.Tensor: torch.mul,
    aten.div.Tensor: torch.div,
    aten.neg.default: torch.neg,
    aten.lt.Tensor: torch.lt,
    aten.relu.default: torch.relu,
    aten.clamp.default: torch.clamp,
    aten.addcmul.default: torch.addcmul,
    aten.gather.default: torch.gather,
    aten.scatter_add.default: torch.scatter_add,
    aten.sum.dim_IntList: torch.sum,
    aten.where.self: torch.where,
    aten.permute.default: torch.permute,
    aten.stack.default: torch.stack,
    aten.cat.default: torch.cat,
    aten.abs.default: torch.abs,
    aten.maximum.default: torch.maximum,
    aten.eq.Tensor: torch.eq,
    aten.ne.Scalar: torch.ne,
    aten.gt.Tensor: torch.gt,
    aten.le.Tensor: torch.le,
    aten.bitwise_not.default: torch.bitwise_not,
    aten.bitwise_and.Tensor: torch.bitwise_and,
    aten.masked_fill.Scalar: torch.masked_fill,
    aten.reciprocal.default: torch.reciprocal,
    aten.ones_like.default: torch.ones_like,
    aten.linalg_vector_norm.default: torch.linalg.vector_norm,
    aten._log_softmax.default: torch._log_softmax,
    aten._log_softmax_backward_data.default: torch._log_softmax_backward_data,
}
_SAME_KEYWORDS = {  # where torch's function calls them so, too
    aten.linalg_vector_norm.default: {"dtype"},
    aten.ones_like.default: {"pin_memory"},
}


def call_natively(graph: GraphModule) -> None:
    """Name what torch has a function for; the rest stays as it is."""
    for node in graph.graph.nodes:
        known = node.op == "call_function" and node.target in _NATIVE
        if known and set(node.kwargs) <= _SAME_KEYWORDS.get(node.target, set()):
            node.target = _NATIVE[node.target]
        elif node.target is aten.index.Tensor and _gathers(node):
            node.target, node.args = _gather, tuple(node.all_input_nodes)
        elif node.target is aten._to_copy.default and _casts(node):
            node.target = torch.Tensor.to


def _gather(x: Tensor, index: Tensor) -> Tensor:
    """x[index] for rows: copied whole, not number by number."""
    return x.index_select(0, index.reshape(-1)).view(*index.shape, *x.shape[1:])


def _gathers(node: Node) -> bool:
    """Is it the plan of a step that picks rows of the data? Only of what was given is it certain that none is < 0."""
    x, index = node.args[0], list(node.args[1])  # type: ignore[arg-type]
    given = [n for n in (x, *index) if isinstance(n, Node) and n.op == "placeholder"]
    return len(index) == 1 and len(given) == 2


def _casts(node: Node) -> bool:
    """Is it a copy because the type is another? One of the same type would be no copy."""
    if not node.all_input_nodes:  # a constant
        return False
    before = node.all_input_nodes[0].meta["tensor_meta"].dtype
    return set(node.kwargs) == {"dtype"} and node.kwargs["dtype"] is not before
