"""A chunk's round as CUDA graphs: recorded once for a shape, then replayed without Python in between.

The numbers of a round are copied into tensors that stay where they are; the carry stays where it is, too, and every
graph of steps changes it in place. A counter on the device says which batch is next, so one graph serves all steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from atoll import tree
from atoll.engines.capture import Captured
from atoll.engines.vector.inputs import Inputs, Plans
from atoll.engines.vector.ragged import blocks
from atoll.engines.vector.stacked import Stacked
from atoll.tasks.kernels import kernel_layout, plain_layout
from atoll.tree import Tree

_EAGER = 2  # rounds of a shape before it is recorded
_LONG = 64  # steps of a round that take longer one by one than recording does: such a round is recorded at once
_SHAPES = 8  # recorded shapes that are kept


class Graphs:
    """Recorded rounds by shape."""

    def __init__(self, columns: Tree, device: torch.device) -> None:
        self.columns, self.device = columns, device
        self.seen: dict[Any, int] = {}
        self.recorded: dict[Any, Recorded] = {}
        self.refused: str | None = None
        self.replays = 0

    def __call__(
        self, mark: Any, program: Stacked, given: Inputs, at_work: list[int], per_client: bool, many: bool
    ) -> tuple[Tree, Tree] | None:
        """The round's outcome and its clients' info, in tensors that the next replay overwrites; None: not recorded."""
        if self.refused or not at_work:
            return None
        key = (mark, _shape(given))
        self.seen[key] = self.seen.get(key, 0) + 1
        if self.seen[key] <= _EAGER and len(at_work) < _LONG:
            return None
        if key not in self.recorded:
            while len(self.recorded) >= _SHAPES:
                del self.recorded[next(iter(self.recorded))]
            self.recorded[key] = Recorded(program, self.columns, given, self.device, per_client, many)
        try:
            self.replays += 1
            recorded = self.recorded[key]
            return recorded(given, at_work), recorded.given.info
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as e:
            self.refused = str(e).strip().splitlines()[0][:160]
            self.recorded.clear()
            torch.cuda.synchronize(self.device)
            return None


class Recorded:
    """The graphs of one shape."""

    def __init__(
        self, program: Stacked, columns: Tree, given: Inputs, device: torch.device, per_client: bool, many: bool
    ) -> None:
        self.program, self.columns, self.device, self.per_client, self.many = program, columns, device, per_client, many
        c, s, b = given.plan.shape
        room = _room(s)
        self.plans = Plans(c, room, b, device)
        self.given = replace(given.to(device).map(_own), **self.plans.there)
        self.clients = c
        self.t = torch.zeros(1, dtype=torch.int64, device=device)
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.steps: dict[tuple[int, bool, int], torch.cuda.CUDAGraph] = {}
        self.carry: Tree = {}
        self.out: Tree = {}
        self.begin: torch.cuda.CUDAGraph | None = None
        self.end: torch.cuda.CUDAGraph | None = None

    def __call__(self, given: Inputs, at_work: list[int]) -> Tree:
        """One round."""
        self._fill(given)
        pieces = blocks(at_work, self.clients)
        self._record(pieces)
        assert self.begin is not None
        assert self.end is not None
        self.t.zero_()
        self.begin.replay()
        for piece in pieces:
            self.steps[piece].replay()
        self.end.replay()
        return self.out

    def _fill(self, given: Inputs) -> None:
        self.plans.fill(given)
        parts = [(getattr(self.given, k), getattr(given, k)) for k in ("settings", "sent", "own", "state")]
        still = [x for part, _ in parts for x in tree.leaves(part)]
        if still:
            torch._foreach_copy_(still, [x for _, part in parts for x in tree.leaves(part)])

    def _record(self, pieces: list[tuple[int, bool, int]]) -> None:
        """Whatever is not recorded yet. Recording runs the steps, so it comes before the round begins."""
        if self.begin is None:
            self.begin, self.carry = self._graph(self._start)
        for piece in pieces:
            if piece not in self.steps:
                self.steps[piece] = self._graph(partial(self._steps, *piece))[0]
        if self.end is None:
            self.end, self.out = self._graph(self._finish)

    def _graph(self, f: Callable[[], Tree]) -> tuple[torch.cuda.CUDAGraph, Tree]:
        """Warm up on a stream of our own, then record."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            self.t.zero_()
            f()
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            out = f()
        if not self.carry:  # recording does not compute: the carry must hold numbers when steps are warmed up
            graph.replay()
        return graph, out

    def _start(self) -> Tree:
        g = self.given
        return unaliased(self.program.start(self.clients, g.settings, g.sent, g.own, kernel_layout), vars(g))

    def _steps(self, width: int, ragged: bool, length: int) -> Tree:
        g = self.given.first(width, self.per_client, self.many)
        still = tree.rows(self.carry, slice(0, width))
        carry, t = still, self.t
        left = self.given.info["steps"][:width]
        for _ in range(length):
            batch = (x.index_select(1, t).squeeze(1) for x in (g.plan, g.count, g.keys))
            new = _traced(self.program.step, g.settings, carry, g.sent, g.own, self.columns, *batch)
            carry = _where(left > t, new, carry) if ragged else new
            t = t + 1
        tree.map(lambda a, b: a.copy_(b), still, carry)
        self.t.copy_(t)
        return {}

    def _finish(self) -> Tree:
        g = self.given
        carry = tree.map(plain_layout, self.carry)  # how kernels like it is between steps alone
        return _traced(self.program.finish, g.settings, carry, g.sent, g.own, g.state, g.info, g.transform_keys)


def unaliased(carry: Tree, given: Tree) -> Tree:
    """The carry, every leaf in memory of its own, since steps change it in place.

    It may begin as what was sent, and one tensor of zeros may stand for several of its leaves.
    """
    taken = {x.untyped_storage().data_ptr() for x in tree.leaves(given)}

    def own(x: Tensor) -> Tensor:
        x = x.clone() if x.untyped_storage().data_ptr() in taken else x
        taken.add(x.untyped_storage().data_ptr())
        return x

    return tree.map(own, carry)  # type: ignore[no-any-return]


def _traced(f: Callable[..., Tree], *args: Any) -> Tree:
    """Traced first, where that is not done: flat code is quicker to record."""
    return f.prepare(*args) if isinstance(f, Captured) and not torch.cuda.is_current_stream_capturing() else f(*args)


def _where(chosen: Tensor, a: Tree, b: Tree) -> Tree:
    return tree.map(lambda x, y: torch.where(chosen.reshape(-1, *[1] * (x.dim() - 1)), x, y), a, b)  # type: ignore[no-any-return]


def _own(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _room(steps: int) -> int:
    """Up to a power of two, so that cohorts of different lengths share a recording."""
    return 1 << max(0, steps - 1).bit_length()


def _shape(given: Inputs) -> Any:
    c, s, b = given.plan.shape
    rest = (given.settings, given.sent, given.own, given.state)
    return c, _room(s), b, tuple((p, tuple(x.shape), x.dtype) for part in rest for p, x in tree.paths(part))
