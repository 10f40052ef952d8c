"""The kernels that a function of tensors calls, written down while it runs once.

What torch's own tracer gives (`make_fx`), for functions of real tensors, in a thirtieth of the time and without its
imports: no symbolic shapes, no fake tensors, only the calls below vmap and grad, in order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

_READS = torch.ops.aten._local_scalar_dense.default  # .item(), bool(), int(): what follows depends on the number


class Like(NamedTuple):
    """What is known of a node's tensor."""

    shape: torch.Size
    dtype: torch.dtype


def record(f: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> GraphModule:
    """The graph of f(*inputs); a RuntimeError where what is called depends on the numbers in them."""
    recorder = _Recorder(inputs)
    with recorder:
        outputs = f(*inputs)
    recorder.graph.output([recorder.node(x) for x in outputs])
    return GraphModule(recorder.constants, recorder.graph)


class _Recorder(TorchDispatchMode):  # type: ignore[misc,no-untyped-call]
    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph, self.constants = Graph(), nn.Module()
        self.nodes = WeakTensorKeyDictionary()  # of tensors, which may go as soon as nobody needs them
        for i, x in enumerate(inputs):
            self._remember(x, self.graph.placeholder(f"arg{i}"))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else the whole compiler is imported to be told that it has no business here."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is _READS:
            raise RuntimeError("a number is read from a tensor while it is traced")
        out = func(*args, **(kwargs or {}))
        node = self.graph.call_function(func, self._nodes(args), self._nodes(dict(kwargs or {})))
        if isinstance(out, Tensor):
            self._remember(out, node)
        else:
            for i, x in enumerate(out or ()):
                if isinstance(x, Tensor):
                    self._remember(x, self.graph.call_function(operator.getitem, (node, i)))
        return out

    def node(self, x: Tensor) -> Node:
        """What stands for a tensor; one that nobody made here is a constant."""
        if x not in self.nodes:
            name = f"_given{len(list(self.constants.buffers()))}"
            self.constants.register_buffer(name, x, persistent=False)
            self._remember(x, self.graph.get_attr(name))
        return self.nodes[x]  # type: ignore[no-any-return]

    def _remember(self, x: Tensor, node: Node) -> None:
        node.meta["tensor_meta"] = Like(x.shape, x.dtype)
        self.nodes[x] = node

    def _nodes(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            return self.node(x)
        if isinstance(x, dict):
            return {k: self._nodes(v) for k, v in x.items()}
        return type(x)(self._nodes(v) for v in x) if type(x) in (list, tuple) else x
