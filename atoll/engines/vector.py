"""The fast one: the whole cohort as one stack of tensors, in chunks that fit a memory budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import vmap

from atoll import tree
from atoll.core import Cohort, Info, Job, Result, Update, functional
from atoll.engines.capture import Captured
from atoll.engines.program import Decode, Program, client_keys, merged, step_keys
from atoll.tree import Tree


@dataclass
class Vector:
    """Train a chunk of clients as one stack, step by step, dropping those that have finished.

    Clients are sorted by their number of steps, so the ones still at work are a prefix of the stack. The prefix is
    rounded up to a quarter of the chunk, so that few shapes occur and each can be captured.
    """

    name: ClassVar[str] = "vector"

    columns: Tree
    decode: Decode
    device: torch.device
    keyed: bool = True
    chunk: int = 1 << 30  # clients at a time
    capture: bool = True
    reason: str = field(default="chosen by name")
    _programs: dict[Any, tuple[Program, Any]] = field(default_factory=dict)

    def run(self, job: Job) -> Result:
        n = len(job.cohort)
        order = torch.argsort(job.cohort.steps, descending=True, stable=True)
        keys, own = step_keys(job, self.keyed), client_keys(job)
        parts = []
        loss, finite = torch.zeros(n, device=self.device), torch.ones(n, dtype=torch.bool, device=self.device)
        with torch.no_grad():
            for rows in torch.split(order, min(self.chunk, max(n, 1))):  # type: ignore[no-untyped-call]
                out = self._train(job, job.cohort.rows(rows), rows, keys[rows], own[rows])
                there = rows.to(self.device)
                loss[there], finite[there] = out["loss"], out["finite"]
                good = out["finite"]
                kept = out if bool(good.all()) else tree.rows(out, good)
                if len(kept["weight"]):
                    parts.append(job.reducer.lift(Update(kept["value"], kept["weight"])))
                    job.memory.write(job.cohort.id[rows][good.cpu()], kept["memory"])
        total = job.reducer.finish(merged(parts)) if parts else None
        return Result(total, loss, finite, order[finite.cpu()[order]])

    def _train(self, job: Job, cohort: Cohort, rows: Tensor, keys: Tensor, own: Tensor) -> Tree:
        """Every client of a chunk, from start to finish: stacked leaves, in the order of the chunk."""
        program, step = self._program(job)
        to = self.device
        sent = tree.rows(job.sent, rows.to(to)) if job.each else job.sent
        s = 0 if job.each else None
        memory = job.memory.read(cohort.id)
        m = 0 if tree.leaves(memory) else None
        plan, count, keys = cohort.plan.to(to), cohort.count.to(to), keys.to(to)
        active = _active(cohort.steps)
        with functional():
            if s is None and m is None:  # all start alike: make one and repeat it
                carry = tree.stack(program.start(job.settings, sent, memory), len(cohort))
            else:
                carry = vmap(program.start, in_dims=(None, s, m))(job.settings, sent, memory)
        carry = tree.map(torch.Tensor.contiguous, carry)
        finished: list[Tree] = []
        for t, n in enumerate(active):
            width = min(len(cohort), _rounded(n, len(cohort)))
            if width < len(tree.leaves(carry)[0]):
                finished.append(tree.rows(carry, slice(width, None)))
                carry = tree.rows(carry, slice(0, width))
            here = slice(0, width)
            near = sent if s is None else tree.rows(sent, here)
            mine = memory if m is None else tree.rows(memory, here)
            batch = (x[here, t].contiguous() for x in (plan, count, keys))
            new = step(job.settings, carry, near, mine, self.columns, *batch)
            carry = new if n == width else tree.map(lambda a, b, n=n: torch.cat([a[:n], b[n:]]), new, carry)
        carry = tree.cat([carry, *reversed(finished)])
        info = Info(cohort.id.to(to), cohort.examples.to(to), cohort.steps.to(to, torch.float32))
        with functional():
            finish = vmap(program.finish, in_dims=(None, 0, s, m, None, 0, 0))
            return finish(job.settings, carry, sent, memory, job.state, info, own.to(to))  # type: ignore[no-any-return]

    def _program(self, job: Job) -> tuple[Program, Any]:
        """The program and its stacked step, made once for an algorithm and a chain."""
        mark = (id(job.algorithm), id(job.chain), job.each)
        if mark not in self._programs:
            program = Program(job.algorithm, job.chain, self.decode)
            s = 0 if job.each else None

            def stacked(settings: Tree, carry: Tree, sent: Tree, memory: Tree, *batch: Any) -> Tree:
                m = 0 if tree.leaves(memory) else None
                dims = (None, 0, s, m, None, 0, 0, 0)
                return vmap(program.step, in_dims=dims)(settings, carry, sent, memory, *batch)  # type: ignore[no-any-return]

            self._programs[mark] = (program, Captured(stacked) if self.capture else _eager(stacked))
        return self._programs[mark]


def _eager(f: Any) -> Any:
    def call(*args: Any) -> Tree:
        with functional():
            return f(*args)  # type: ignore[no-any-return]

    return call


def _active(steps: Tensor) -> list[int]:
    """How many clients are still at work in each step; `steps` is sorted, longest first."""
    longest = int(steps[0]) if len(steps) else 0
    return [int(x) for x in (steps[None, :] > torch.arange(longest)[:, None]).sum(1)]


def _rounded(n: int, full: int) -> int:
    """Up to the next quarter of the chunk."""
    grain = max(1, -(-full // 4))
    return -(-n // grain) * grain
