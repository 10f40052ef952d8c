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
from atoll.core import Info, Job, Result, functional
from atoll.engines.capture import Captured
from atoll.engines.program import Decode, Program, Writes, alone, client_keys, lifted, merged, step_keys
from atoll.phases import phase
from atoll.tree import Tree


@dataclass
class Threads:
    """Train clients one by one on each core, with a captured step; sums are taken in the order of the cohort.

    A stacked convolution has per-client weights, which CPUs do badly (a grouped convolution); many threads on one
    small convolution do badly too. One client per core does neither.
    """

    name: ClassVar[str] = "threads"

    columns: Tree
    decode: Decode
    device: torch.device
    keyed: bool = True
    workers: int = 0  # 0: one per core
    reason: str = field(default="chosen by name")
    _programs: dict[Any, tuple[Program, Captured]] = field(default_factory=dict, init=False)
    _pool: ThreadPoolExecutor | None = field(default=None, init=False)

    def run(self, job: Job) -> Result:
        n = len(job.cohort)
        keys, own = step_keys(job.cohort, job.key, self.keyed), client_keys(job)
        total: Any = None
        writes = Writes(job)
        loss, finite = torch.zeros(n), torch.ones(n, dtype=torch.bool)
        for c, out in enumerate(self._results(job, keys, own)):
            loss[c], finite[c] = out["loss"], out["finite"]
            if out["finite"]:
                part = lifted(job.reducer, alone(out))
                with phase("reduce"):
                    total = part if total is None else total.merge(part)
                writes.keep(job.cohort.id[c : c + 1], tree.map(lambda x: x[None], out["memory"]))
        writes.finish()
        total = merged(job.reducer, [] if total is None else [total])
        return Result(total, loss, finite, finite.nonzero().flatten())

    def _results(self, job: Job, keys: Tensor, own: Tensor) -> Iterator[Tree]:
        """In the order of the cohort, with a bounded number under way, so that few updates are held at once."""
        program, step = self._program(job)
        pool = self._started()
        waiting: deque[Future[Tree]] = deque()
        for c in range(len(job.cohort)):
            waiting.append(pool.submit(self._client, program, step, job, c, keys[c], own[c]))
            if len(waiting) > 2 * self.count():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _client(self, program: Program, step: Captured, job: Job, c: int, keys: Tensor, own: Tensor) -> Tree:
        cohort = job.cohort
        sent, memory, carry = self._begin(program, job, c)
        with torch.no_grad(), functional():
            for s in range(int(cohort.steps[c])):
                batch = (cohort.plan[c, s], cohort.count[c, s], keys[s])
                carry = step(job.settings, carry, sent, memory, self.columns, *batch)
            info = Info(cohort.id[c], cohort.examples[c], cohort.steps[c].float())
            return program.finish(job.settings, carry, sent, memory, job.state, info, own)

    def _program(self, job: Job) -> tuple[Program, Captured]:
        mark = (id(job.algorithm), id(job.chain))
        if mark not in self._programs:
            program = Program(job.algorithm, job.chain, self.decode)
            step = Captured(program.step, after=0)
            self._warm(program, step, job)
            self._programs[mark] = (program, step)
        return self._programs[mark]

    def _warm(self, program: Program, step: Captured, job: Job) -> None:
        """Capture the step on this thread, before there are others; a second one, since its layout may differ."""
        sent, memory, carry = self._begin(program, job, 0)
        key = torch.zeros(2, dtype=torch.int64)
        for _ in range(2):
            batch = (job.cohort.plan[0, 0], job.cohort.count[0, 0], key)
            carry = step.prepare(job.settings, carry, sent, memory, self.columns, *batch)

    def _begin(self, program: Program, job: Job, c: int) -> tuple[Tree, Tree, Tree]:
        with torch.no_grad(), functional():
            sent = tree.rows(job.sent, c) if job.each else job.sent
            read = job.memory.read(job.cohort.id[c : c + 1])
            memory = tree.rows(read, 0) if tree.leaves(read) else read
            carry = program.start(job.settings, sent, memory)
            return sent, memory, tree.map(torch.Tensor.contiguous, carry)

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
