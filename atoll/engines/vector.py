"""The fast one: the whole cohort as one stack of tensors, in chunks that fit a memory budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import vmap

from atoll import tree
from atoll.core import Cohort, Info, Job, Result, Update, functional
from atoll.engines.capture import Captured
from atoll.engines.program import Decode, Program, Writes, client_keys, merged, step_keys
from atoll.tree import Tree


@dataclass(frozen=True)
class Stacked:
    """A program with the client axis added, made once for an algorithm and a chain."""

    start: Callable[..., Tree]
    step: Callable[..., Tree]
    finish: Callable[..., Tree]


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
    _stacked: dict[Any, Stacked] = field(default_factory=dict, init=False)

    def run(self, job: Job) -> Result:
        order = _longest_first(job.cohort.steps)
        keys, own = step_keys(job, self.keyed), client_keys(job)
        parts, losses, finite, writes = [], [], [], Writes(job)
        with torch.no_grad():
            for rows in torch.split(order, self.chunk):  # type: ignore[no-untyped-call]
                part = slice(int(rows[0]), int(rows[-1]) + 1) if _in_order(rows) else rows
                cohort = job.cohort.rows(part)
                out = self._train(job, cohort, part, keys[part], own[part])
                losses.append(out["loss"])
                finite.append(out["finite"])
                good = out["finite"]
                if not bool(good.all()):
                    out = tree.rows(out, good)
                if len(out["weight"]):
                    parts.append(job.reducer.lift(Update(out["value"], out["weight"])))
                    writes.keep(cohort.id[good.cpu()], out["memory"])
        writes.finish()
        total = job.reducer.finish(merged(parts)) if parts else None
        good, back = torch.cat(finite), torch.argsort(order).to(self.device)
        return Result(total, torch.cat(losses)[back], good[back], order[good.cpu()])

    def run_many(self, jobs: Sequence[Job]) -> list[Result]:
        """Several jobs that differ in numbers only (settings, what was sent, cohort, key), each with its own result."""
        return [self.run(job) for job in jobs]

    def _train(self, job: Job, cohort: Cohort, rows: Any, keys: Tensor, own: Tensor) -> Tree:
        """Every client of a chunk, from start to finish: stacked leaves, in the order of the chunk."""
        stacked, to = self._program(job), self.device
        sent = tree.rows(job.sent, rows) if job.each else job.sent
        memory = job.memory.read(cohort.id)
        carry = stacked.start(len(cohort), job.settings, sent, memory)
        plan, count, keys = cohort.plan.to(to), cohort.count.to(to), keys.to(to)
        finished: list[Tree] = []
        width = len(cohort)
        for t, n in enumerate(_active(cohort.steps)):
            if _rounded(n, len(cohort)) < width:
                width = _rounded(n, len(cohort))
                finished.append(tree.rows(carry, slice(width, None)))
                carry, sent, memory = self._first(width, carry, sent, memory, job.each)
            batch = (x[:width, t].contiguous() for x in (plan, count, keys))
            new = stacked.step(job.settings, carry, sent, memory, self.columns, *batch)
            carry = new if n == width else tree.map(lambda a, b, n=n: torch.cat([a[:n], b[n:]]), new, carry)
        if finished:
            carry = tree.cat([carry, *reversed(finished)])
            sent = tree.rows(job.sent, rows) if job.each else job.sent
            memory = job.memory.read(cohort.id)
        info = {"id": cohort.id.to(to), "examples": cohort.examples.to(to), "steps": cohort.steps.to(to).float()}
        return stacked.finish(job.settings, carry, sent, memory, job.state, info, own.to(to))

    def _first(self, n: int, carry: Tree, sent: Tree, memory: Tree, each: bool) -> tuple[Tree, Tree, Tree]:
        """The first n clients of the stack."""
        here = slice(0, n)
        return tree.rows(carry, here), tree.rows(sent, here) if each else sent, tree.rows(memory, here)

    def _program(self, job: Job) -> Stacked:
        mark = (id(job.algorithm), id(job.chain), job.each)
        if mark not in self._stacked:
            wrap = Captured if self.capture else _eager
            program = Program(job.algorithm, job.chain, self.decode)
            step, finish = _stack(program, 0 if job.each else None)
            self._stacked[mark] = Stacked(_starting(program, 0 if job.each else None), wrap(step), wrap(finish))
        return self._stacked[mark]


def _stack(program: Program, s: int | None) -> tuple[Callable[..., Tree], Callable[..., Tree]]:
    """The step and the finish of a program for many clients; `s` is the client axis of what was sent."""

    def step(settings: Tree, carry: Tree, sent: Tree, memory: Tree, columns: Tree, *batch: Tensor) -> Tree:
        dims = (None, 0, s, _axis(memory), None, 0, 0, 0)
        return vmap(program.step, in_dims=dims)(settings, carry, sent, memory, columns, *batch)  # type: ignore[no-any-return]

    def finish(settings: Tree, carry: Tree, sent: Tree, memory: Tree, state: Tree, info: Tree, keys: Tensor) -> Tree:
        def one(carry: Tree, sent: Tree, memory: Tree, info: Tree, key: Tensor) -> Tree:
            return program.finish(settings, carry, sent, memory, state, Info(**info), key)

        return vmap(one, in_dims=(0, s, _axis(memory), 0, 0))(carry, sent, memory, info, keys)  # type: ignore[no-any-return]

    return step, finish


def _starting(program: Program, s: int | None) -> Callable[..., Tree]:
    def start(n: int, settings: Tree, sent: Tree, memory: Tree) -> Tree:
        with functional():
            if s is None and _axis(memory) is None:  # all start alike: make one and repeat it
                carry = tree.stack(program.start(settings, sent, memory), n)
            else:
                carry = vmap(program.start, in_dims=(None, s, _axis(memory)))(settings, sent, memory)
        return tree.map(torch.Tensor.contiguous, carry)  # type: ignore[no-any-return]

    return start


def _eager(f: Callable[..., Tree]) -> Callable[..., Tree]:
    def call(*args: Any) -> Tree:
        with functional():
            return f(*args)

    return call


def _axis(memory: Tree) -> int | None:
    return 0 if tree.leaves(memory) else None


def _longest_first(steps: Tensor) -> Tensor:
    return torch.argsort(steps, descending=True, stable=True)


def _in_order(rows: Tensor) -> bool:
    return bool((rows[1:] - rows[:-1] == 1).all())


def _active(steps: Tensor) -> list[int]:
    """How many clients are still at work in each step; `steps` is sorted, longest first."""
    falling = steps.tolist()
    longest = falling[0] if falling else 0
    if not falling or falling[-1] == longest:
        return [len(falling)] * longest
    return [int(x) for x in (steps[None, :] > torch.arange(longest)[:, None]).sum(1)]


def _rounded(n: int, full: int) -> int:
    """Up to the next quarter of the chunk."""
    grain = max(1, -(-full // 4))
    return min(full, -(-n // grain) * grain)
