"""Capturing a pure function of trees as a flat list of kernels.

Eager `vmap(grad(...))` spends more time in Python than in arithmetic for small models. Traced once per shape, the same
kernels run in the same order with the same results, without a compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from atoll.core import functional
from atoll.engines.fx_simplify import lean
from atoll.engines.record_kernels import record
from atoll.phases import heard
from atoll.tree import Tree


class Captured:
    """Calls `f` eagerly until a shape has been seen `after` times; tracing it costs as much as those
    calls would save.

    `after = 0` never captures by itself, only in `prepare`. With `compile` what was captured is compiled, too.
    """

    def __init__(self, f: Callable[..., Tree], after: int = 8, limit: int = 64, compile: bool = False) -> None:
        self.f, self.after, self.limit, self.compile = f, after, limit, compile
        self.refused: str | None = None  # why it could not be compiled
        self.seen: dict[Any, int] = {}
        self.graphs: dict[Any, Callable[..., list[Tensor]]] = {}
        self.shapes: dict[Any, Any] = {}

    def __call__(self, *args: Any) -> Tree:
        if heard():
            with functional():
                return self.f(*args)
        flat: list[Tensor] = []
        structure = tuple(_flatten(a, flat) for a in args)
        signature = _signature(structure, flat)
        graph = self.graphs.get(signature)
        if graph is None:
            return self._first(signature, structure, args, flat)
        return _unflatten(self.shapes[signature], iter(graph(*flat)))  # type: ignore[no-any-return]

    def _first(self, signature: Any, structure: Any, args: tuple[Any, ...], flat: list[Tensor]) -> Tree:
        self.seen[signature] = self.seen.get(signature, 0) + 1
        if self.seen[signature] == self.after and len(self.graphs) < self.limit:
            self._trace(signature, structure, flat)
        with functional():
            return self.f(*args)

    def prepare(self, *args: Any) -> Tree:
        """`f(*args)`, captured now. Tracing is not thread-safe: do it here, before other threads call."""
        flat: list[Tensor] = []
        structure = tuple(_flatten(a, flat) for a in args)
        signature = _signature(structure, flat)
        if signature not in self.graphs:
            self._trace(signature, structure, flat)
        return self(*args)

    def _trace(self, signature: Any, structure: Any, flat: list[Tensor]) -> None:
        def flattened(*leaves: Tensor) -> list[Tensor]:
            source = iter(leaves)
            out: list[Tensor] = []
            result = self.f(*(_unflatten(s, source) for s in structure))
            self.shapes[signature] = _flatten(result, out)
            return out

        with functional(), torch.no_grad():
            # tracing tells inputs apart by identity, and a client may well start from the very tensor it was sent
            graph = record(flattened, [x.detach() for x in flat])
        plain = lean(graph, flat[0].device, fold=not self.compile)
        self.graphs[signature] = self._compiled(graph, flat) or plain if self.compile else plain

    def _compiled(self, graph: GraphModule, flat: list[Tensor]) -> Callable[..., list[Tensor]] | None:
        """By PyTorch's compiler, which keeps what it made on disk; None, and the reason in `refused`, if it cannot."""
        try:
            from torch._inductor import compile as inductor

            compiled: Any = inductor(graph, [x.detach() for x in flat])
            compiled(*[x.detach() for x in flat])
        except Exception as e:  # whatever a compiler may raise, the kernels one by one still work
            self.refused = f"{type(e).__name__}: {str(e).strip().splitlines()[0][:160] if str(e).strip() else ''}"
            return None
        return compiled  # type: ignore[no-any-return]


def _signature(structure: Any, flat: list[Tensor]) -> Any:
    return structure, tuple([(x.shape, x.stride(), x.dtype) for x in flat])


def _flatten(x: Any, into: list[Tensor]) -> Any:
    """The structure of nested dicts as nested tuples; their tensors go into the list."""
    if isinstance(x, dict):
        return tuple([(k, _flatten(v, into)) for k, v in x.items()])
    into.append(x)
    return None


def _unflatten(structure: Any, leaves: Any) -> Any:
    if structure is None:
        return next(leaves)
    return {k: _unflatten(s, leaves) for k, s in structure}
