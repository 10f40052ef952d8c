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

from atoll import tree
from atoll.core import Program, functional
from atoll.engines.capture import Captured
from atoll.engines.one_by_one import ClientInputs, OneByOne
from atoll.engines.program import ClientSteps
from atoll.tree import Tree


@dataclass
class Threads(OneByOne):
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

    def clients(self, given: ClientInputs) -> Iterator[Tree]:
        """With a bounded number under way, so that few updates are held at once."""
        if not len(given.cohort):
            return
        steps, step = self._program(given)
        pool = self._started()
        waiting: deque[Future[Tree]] = deque()
        for c in range(len(given.cohort)):
            waiting.append(pool.submit(self._client, steps, step, given, c))
            if len(waiting) > 2 * self.count():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _client(self, steps: ClientSteps, step: Captured, given: ClientInputs, c: int) -> Tree:
        settings, columns, cohort, keys = given.request.settings, self.data.columns, given.cohort, given.step_keys[c]
        sent, own, carry, state = self._begin(steps, given, c)
        with torch.no_grad(), functional():
            for s in range(int(cohort.steps[c])):
                carry = step(settings, carry, sent, own, columns, cohort.plan[c, s], cohort.count[c, s], keys[s])
            return steps.finish(settings, carry, sent, own, state, given.info_of(c), given.keys[c])

    def _program(self, given: ClientInputs) -> tuple[ClientSteps, Captured]:
        program = given.request.program
        if program in self._programs:
            return self._programs[program]
        steps = ClientSteps(program, self.data.decode)
        step = Captured(steps.step, after=0)
        if given.cohort.plan.numel():  # else nobody takes a step, and the next cohort will do
            self._warm(steps, step, given)
            self._programs[program] = (steps, step)
        return steps, step

    def _warm(self, steps: ClientSteps, step: Captured, given: ClientInputs) -> None:
        """Capture the step on this thread, before there are others; a second one, since its layout may differ."""
        sent, own, carry, _ = self._begin(steps, given, 0)
        batch = (given.cohort.plan[0, 0], given.cohort.count[0, 0], torch.zeros(2, dtype=torch.int64))
        for _ in range(2):
            carry = step.prepare(given.request.settings, carry, sent, own, self.data.columns, *batch)

    def _begin(self, steps: ClientSteps, given: ClientInputs, c: int) -> tuple[Tree, Tree, Tree, Tree]:
        with torch.no_grad(), functional():
            sent, state, own = given.inputs(c)
            carry = steps.start(given.request.settings, sent, own)
            return sent, own, tree.map(torch.Tensor.contiguous, carry), state

    def count(self) -> int:
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
