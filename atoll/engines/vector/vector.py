"""The fast one: the whole cohort as one stack of tensors, in chunks that fit a memory budget."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Begun, Cohort, Job, Result
from atoll.engines.program import SENT, Decode, Program, Writes, lifted, merged, step_keys
from atoll.engines.vector.cuda_graphs import Graphs
from atoll.engines.vector.inputs import Inputs
from atoll.engines.vector.ragged import active, rounded
from atoll.engines.vector.stacked import Stacked, stacked
from atoll.engines.vector.stacked_jobs import Lanes, joined
from atoll.errors import TrainingError
from atoll.phases import heard
from atoll.tree import Tree

_COMPILING = 20.0  # seconds that compiling a step takes, about
_SAVED = 0.25  # of a round's time by a compiled step, or more
_WATCHED = 3  # recorded rounds before that is reckoned


@dataclass
class Vector:
    """Train a chunk of clients as one stack, step by step, dropping those that have finished.

    Clients are sorted by their number of steps, so the ones still at work are a prefix of the stack. The prefix is
    rounded up to a quarter of the chunk, so that few shapes occur and each can be captured: as a flat list of kernels,
    and on a GPU as CUDA graphs. A chunk that does not fit in memory is cut in half.
    """

    name: ClassVar[str] = "vector"

    columns: Tree
    decode: Decode
    device: torch.device
    keyed: bool = True
    chunk: int = 1 << 30  # clients at a time
    capture: bool = True
    compile: bool | Literal["auto"] = False  # with PyTorch's compiler, on a GPU; "auto": once it pays
    reason: str = field(default="chosen by name")
    left: int = 0  # rounds that are still to come, as far as is known
    _stacked: dict[Any, Stacked] = field(default_factory=dict, init=False)
    _graphs: Graphs | None = field(default=None, init=False)
    _ahead: tuple[Cohort, Tensor] | None = field(default=None, init=False)
    _quickest: float = field(default=math.inf, init=False)  # seconds of a recorded round

    @property
    def defers(self) -> bool:
        """Does `begin` come back before the numbers are there? Without a GPU there is nothing to wait for."""
        return self.device.type == "cuda"

    def run(self, job: Job) -> Result:
        return self.run_many([job])[0]

    def run_many(self, jobs: Sequence[Job]) -> list[Result]:
        """Several jobs that differ in numbers only (settings, what was sent, cohort, key), each with its own result."""
        began = time.perf_counter()
        lanes = self._joined(jobs)
        tallies = [Tally(job) for job in jobs]
        order = torch.argsort(lanes.cohort.steps, descending=True, stable=True)
        waiting = list(torch.split(order, self.chunk)) if len(order) else []  # type: ignore[no-untyped-call]
        first = torch.tensor([0, *(len(job.cohort) for job in jobs)]).cumsum(0)
        with torch.no_grad():
            while waiting:
                rows = waiting.pop(0)
                try:
                    out = self._train(lanes, rows)
                    self._tell(jobs, last=not waiting)
                    for r, (tally, places) in enumerate(zip(tallies, lanes.places(rows), strict=True)):
                        if len(places):
                            one = out if not lanes.many else tree.rows(out, places.to(self.device))
                            tally.add(one, rows[places] - first[r], lanes.cohort.id[rows[places]])
                except torch.cuda.OutOfMemoryError as e:
                    waiting[:0] = self._halved(rows, e)
        self._consider(time.perf_counter() - began)
        return [tally.result() for tally in tallies]

    def begin(self, job: Job) -> Begun:
        """The job, with its total at once: on a GPU the host need not wait before it says what happens to the total."""
        if not self.defers or len(job.cohort) > self.chunk or not len(job.cohort):
            return Begun.of(self.run(job))
        began = time.perf_counter()
        lanes = self._joined([job])
        rows = torch.argsort(lanes.cohort.steps, descending=True, stable=True)
        made = None
        try:
            with torch.no_grad():
                out = self._train(lanes, rows)
                made = lifted(job.reducer, out)
            self._tell([job], last=True)
        except torch.cuda.OutOfMemoryError as e:
            self._halved(rows, e)
        if made is None:  # not before the error is gone, and what it holds
            return self.begin(job)
        part, total = made, job.reducer.finish(made)

        def result() -> Result:
            tally, good = Tally(job), None
            try:
                with torch.no_grad():
                    good = tally.add(out, rows, lanes.cohort.id[rows], part)
            except torch.cuda.OutOfMemoryError as e:  # no room for those who are left, once somebody is left out
                self._halved(rows, e)
            if good is None:
                return self.run(job)
            self._consider(time.perf_counter() - began)
            found = tally.result()
            return replace(found, total=total) if good else found

        return Begun(total, result)

    def _joined(self, jobs: Sequence[Job]) -> Lanes:
        return joined(jobs, self.keyed, {} if self._ahead is None else {id(self._ahead[0]): self._ahead[1]})

    def ahead(self, cohort: Cohort, key: Tensor) -> None:
        """Make ready what a later job with this cohort and key will need: the host has time for it now."""
        self._ahead = (cohort, step_keys(cohort, key, self.keyed))

    def _tell(self, jobs: Sequence[Job], last: bool) -> None:
        """A GPU is at work on its own now: the host may do what the job left for it."""
        for job in jobs:
            if last and job.meanwhile is not None and self.device.type == "cuda":
                job.meanwhile()

    def _consider(self, seconds: float) -> None:
        """Compile from now on, if the rounds to come will win more than that costs."""
        if self.compile != "auto" or self._graphs is None or not self._graphs.recorded:
            return
        self._quickest = min(self._quickest, seconds)
        if self._graphs.replays > _WATCHED and _SAVED * self._quickest * self.left > _COMPILING:
            self.compile = True
            self.reason += f"; compiled, since {self.left} rounds of {1e3 * self._quickest:.3g} ms were to come"
            self._forget()

    def _compiling(self) -> bool:
        """Not on a CPU, where compiled dropout kept other entries than the plain step (seen with torch 2.13)."""
        return self.compile is True and self.device.type == "cuda"

    def _forget(self) -> None:
        self._stacked.clear()
        self._graphs = None

    def _halved(self, rows: Tensor, e: torch.cuda.OutOfMemoryError) -> list[Tensor]:
        if len(rows) == 1:
            raise TrainingError(
                "engine: one client alone does not fit in the GPU's memory. Use a smaller local.batch or model."
            ) from e
        self.chunk = -(-len(rows) // 2)
        self.reason += f"; out of memory with {len(rows)} clients at a time, so {self.chunk}"
        self._forget()
        torch.cuda.empty_cache()
        return list(torch.split(rows, self.chunk))  # type: ignore[no-untyped-call]

    def _train(self, lanes: Lanes, rows: Tensor) -> Tree:
        """Every client of a chunk, from start to finish: stacked leaves, in the order of the chunk."""
        cohort = lanes.cohort.rows(rows)
        inputs = Inputs(
            lanes.settings(rows),
            lanes.sent(rows),
            lanes.memory(rows),
            lanes.state(rows),
            {"id": cohort.id, "examples": cohort.examples, "steps": cohort.steps.float()},
            lanes.own[rows],
            cohort.plan,
            cohort.count,
            lanes.keys[rows],
        )
        mark, program = self._program(lanes)
        at_work = active(cohort.steps)
        if self.capture and self.device.type == "cuda" and not heard():
            self._graphs = self._graphs or Graphs(self.columns, self.device)
            replayed = self._graphs(mark, program, inputs, at_work, lanes.each, lanes.many)
            self._say(program)
            if replayed is not None:
                return tree.map(torch.clone, replayed) if _kept(lanes) else replayed  # type: ignore[no-any-return]
        return self._eager(program, inputs.to(self.device), at_work, lanes.each, lanes.many)

    def _say(self, program: Stacked) -> None:
        """Why something is slower than it might be, once."""
        graphs = self._graphs.refused if self._graphs else None
        for what, why in (("no CUDA graph", graphs), ("not compiled", program.refused())):
            if why and f"; {what}" not in self.reason:
                self.reason += f"; {what}: {why}"

    def _eager(self, program: Stacked, given: Inputs, at_work: list[int], each: bool, many: bool) -> Tree:
        full = width = len(given.own)
        now = given
        carry = program.start(full, given.settings, given.sent, given.memory)
        finished: list[Tree] = []
        for t, n in enumerate(at_work):
            if rounded(n, full) < width:
                width = rounded(n, full)
                finished.append(tree.rows(carry, slice(width, None)))
                carry, now = tree.rows(carry, slice(0, width)), given.first(width, each, many)
            batch = (x[:width, t].contiguous() for x in (given.plan, given.count, given.keys))
            new = program.step(now.settings, carry, now.sent, now.memory, self.columns, *batch)
            carry = new if n == width else tree.map(lambda a, b, n=n: torch.cat([a[:n], b[n:]]), new, carry)
        if finished:
            carry = tree.cat([carry, *reversed(finished)])
        return program.finish(given.settings, carry, given.sent, given.memory, given.state, given.info, given.own)

    def _program(self, lanes: Lanes) -> tuple[Any, Stacked]:
        job = lanes.jobs[0]
        mark = (id(job.algorithm), id(job.chain), lanes.each, lanes.many)
        if mark not in self._stacked:
            program = Program(job.algorithm, job.chain, self.decode)
            self._stacked[mark] = stacked(program, lanes.each, lanes.many, self.capture, self._compiling())
        return mark, self._stacked[mark]


def _kept(lanes: Lanes) -> bool:
    """Is anything of the outcome held on to beyond the chunk?"""
    repeated = len(set(lanes.cohort.id.tolist())) < len(lanes.cohort)
    return repeated or not all(job.reducer.spec().additive for job in lanes.jobs)


class Tally:
    """What a job's clients came to, chunk by chunk."""

    def __init__(self, job: Job) -> None:
        self.job, self.parts, self.writes = job, [], Writes(job)  # type: ignore[var-annotated]
        self.loss, self.finite = torch.zeros(len(job.cohort)), torch.zeros(len(job.cohort), dtype=torch.bool)
        self.order: list[Tensor] = []

    def add(self, out: Tree, places: Tensor, ids: Tensor, part: Any = None) -> bool:
        """Some more clients, at these places of the cohort. The first look at their numbers waits for the device.

        `part` is what the reducer made of them, if it has been asked. False if some must be left out.
        """
        part = lifted(self.job.reducer, out) if part is None else part
        loss, finite = torch.stack([out["loss"].float(), out["finite"].float()]).cpu()
        good = finite > 0
        self.loss[places], self.finite[places] = loss, good
        if not bool(good.all()):
            kept = good.to(out["weight"].device)
            out = tree.rows(tree.select(out, (*SENT, "memory")), kept)
            part = lifted(self.job.reducer, out) if bool(good.any()) else None
        if part is not None:
            self.parts.append(part)
            self.writes.keep(ids[good], out["memory"])
            self.order.append(places[good])
        return bool(good.all())

    def result(self) -> Result:
        """All of them together."""
        self.writes.finish()
        total = merged(self.job.reducer, self.parts)
        order = torch.cat(self.order) if self.order else torch.zeros(0, dtype=torch.int64)
        return Result(total, self.loss, self.finite, order)
