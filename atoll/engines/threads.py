"""Clients side by side on single-threaded workers: what wins for convolutions on a CPU."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Cohort, Columns, Info, Pending, Program, Train, Trained, functional
from atoll.engines.capture import Captured
from atoll.engines.local import LocalEngine
from atoll.engines.loop import own_inputs
from atoll.engines.program import (
    ClientRows,
    ClientSteps,
    alone,
    client_keys,
    info_of,
    lifted,
    merged,
    reduce_key,
    step_keys,
)
from atoll.phases import phase
from atoll.tree import Tree


@dataclass
class Threads(LocalEngine):
    """Train clients one by one on each core, with a captured step; sums are taken in the order of the cohort.

    A stacked convolution has per-client weights, which CPUs do badly (a grouped convolution); many threads on one
    small convolution do badly too. One client per core does neither.
    """

    name: ClassVar[str] = "threads"

    workers: int = 0  # 0: one per core
    _programs: dict[Program, tuple[ClientSteps, Captured]] = field(default_factory=dict, init=False)
    _pool: ThreadPoolExecutor | None = field(default=None, init=False)

    def choice(self) -> dict[str, Any]:
        return {"name": self.name, "workers": self.count()}

    def train(self, request: Train) -> Pending[Trained]:
        cohort, program = self.data.plan(request), request.program
        n, info, key = len(cohort), info_of(request, cohort), reduce_key(request)
        parts: list[Any] = []  # one at most: merged as they come, so that few updates are held
        rows = ClientRows(self.store, request)
        loss, finite = torch.zeros(n), torch.ones(n, dtype=torch.bool)
        for c, out in enumerate(self._clients(request, cohort, rows, info)):
            loss[c], finite[c] = out["loss"], out["finite"]
            if out["finite"]:
                part = lifted(program, alone(out), Info(*(x[c : c + 1] for x in info)), key)
                with phase("reduce"):
                    parts = [program.reducer.merge(parts[0], part) if parts else part]
                rows.write(cohort.id[c : c + 1], tree.map(lambda x: x[None], out["own"]))
        rows.finish()
        columns = Columns(loss, finite, finite.nonzero().flatten())
        return Pending.done(Trained.settled(merged(program, parts), cohort.examples, columns))

    def _clients(self, request: Train, cohort: Cohort, rows: ClientRows, info: Info) -> Iterator[Tree]:
        """In the order of the cohort, with a bounded number under way, so that few updates are held at once."""
        if not len(cohort):
            return
        keys, own = step_keys(cohort, request.key, self.data.keyed), client_keys(request)
        steps, step = self._program(request, cohort, rows)
        pool = self._started()
        waiting: deque[Future[Tree]] = deque()
        for c in range(len(cohort)):
            here = Info(*(x[c] for x in info))
            waiting.append(pool.submit(self._client, steps, step, request, cohort, c, rows, keys[c], own[c], here))
            if len(waiting) > 2 * self.count():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _client(
        self,
        steps: ClientSteps,
        step: Captured,
        request: Train,
        cohort: Cohort,
        c: int,
        rows: ClientRows,
        keys: Tensor,
        own_key: Tensor,
        info: Info,
    ) -> Tree:
        settings, columns = request.settings, self.data.columns
        sent, own, carry, state = self._begin(steps, request, cohort, c, rows)
        with torch.no_grad(), functional():
            for s in range(int(cohort.steps[c])):
                carry = step(settings, carry, sent, own, columns, cohort.plan[c, s], cohort.count[c, s], keys[s])
            return steps.finish(settings, carry, sent, own, state, info, own_key)

    def _program(self, request: Train, cohort: Cohort, rows: ClientRows) -> tuple[ClientSteps, Captured]:
        program = request.program
        if program in self._programs:
            return self._programs[program]
        steps = ClientSteps(program, self.data.decode)
        step = Captured(steps.step, after=0)
        if cohort.plan.numel():  # else nobody takes a step, and the next cohort will do
            self._warm(steps, step, request, cohort, rows)
            self._programs[program] = (steps, step)
        return steps, step

    def _warm(self, steps: ClientSteps, step: Captured, request: Train, cohort: Cohort, rows: ClientRows) -> None:
        """Capture the step on this thread, before there are others; a second one, since its layout may differ."""
        sent, own, carry, _ = self._begin(steps, request, cohort, 0, rows)
        key = torch.zeros(2, dtype=torch.int64)
        for _ in range(2):
            batch = (cohort.plan[0, 0], cohort.count[0, 0], key)
            carry = step.prepare(request.settings, carry, sent, own, self.data.columns, *batch)

    def _begin(
        self, steps: ClientSteps, request: Train, cohort: Cohort, c: int, rows: ClientRows
    ) -> tuple[Tree, Tree, Tree, Tree]:
        with torch.no_grad(), functional():
            sent, state = own_inputs(request, c)
            own = rows.read_one(cohort.id[c : c + 1])
            carry = steps.start(request.settings, sent, own)
            return sent, own, tree.map(torch.Tensor.contiguous, carry), state

    def count(self) -> int:
        """The workers."""
        return self.workers or len(os.sched_getaffinity(0))

    def _started(self) -> ThreadPoolExecutor:
        if self._pool is None:
            before, n = torch.get_num_threads(), self.count()
            self._pool = ThreadPoolExecutor(n, "atoll")
            together = threading.Barrier(n)
            list(self._pool.map(lambda _: _single(together), range(n)))
            torch.set_num_threads(before)
        return self._pool


def _single(together: threading.Barrier) -> None:
    """Make this thread compute alone. The count is read back at once: torch fixes it for the thread on first use."""
    torch.set_num_threads(1)
    torch.get_num_threads()
    together.wait()
