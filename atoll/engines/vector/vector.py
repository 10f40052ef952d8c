"""The fast one: the whole cohort as one stack of tensors, in chunks that fit a memory budget."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Cohort, Engine, Evaluate, Info, Pending, Program, Request, Train, Trained
from atoll.cpu_threads import cpu_threads
from atoll.engines.evaluation import measure_side_by_side, measurement, metrics_by_group
from atoll.engines.local import LocalEngine
from atoll.engines.program import ClientRows, ClientSteps, step_keys
from atoll.engines.vector.cuda_graphs import Graphs
from atoll.engines.vector.inputs import Inputs
from atoll.engines.vector.ragged import active, longest_first, rounded
from atoll.engines.vector.signature import Signatures
from atoll.engines.vector.stacked import Stacked, stacked
from atoll.engines.vector.stacked_jobs import Lanes, StackedRequest, joined
from atoll.engines.vector.tally import Tally, share_out
from atoll.errors import TrainingError
from atoll.kernel_launch import compile_ahead
from atoll.phases import heard, phase
from atoll.tasks.kernels import kernel_layout
from atoll.tree import Tree

_COMPILING = 20.0  # seconds that compiling a step takes, about
_SAVED = 0.25  # of a round's time by a compiled step, or more
_WATCHED = 3  # recorded rounds before that is reckoned


@dataclass(frozen=True, eq=False)
class Prepared:
    """What was planned for these clients and keys."""

    ids: Tensor
    key: Tensor
    order: Tensor
    max_steps: int | None
    row_table: int
    cohort: Cohort
    keys: Tensor

    def fits(self, request: Train) -> bool:
        """Is it the plan of this request?"""
        same = self.ids is request.ids and self.max_steps == request.max_steps
        same = same and self.row_table == request.row_table
        return same and torch.equal(self.key, request.key) and torch.equal(self.order, request.order)


@dataclass
class Vector(LocalEngine):
    """Train a chunk of clients as one stack, step by step, dropping those that have finished.

    Clients are sorted by their number of steps, so the ones still at work are a prefix of the stack. The prefix is
    rounded up to a quarter of the chunk, so that few shapes occur and each can be captured: as a flat list of kernels,
    and on a GPU as CUDA graphs. A chunk that does not fit in memory is cut in half.
    """

    name: ClassVar[str] = "vector"

    chunk: int = 1 << 30  # clients at a time
    capture: bool = True
    compile: bool | Literal["auto"] = False  # with PyTorch's compiler, on a GPU; "auto": once it pays
    threads: int | None = None  # of a kernel on a CPU; None: as many as torch uses
    rounds_left: int = field(default=0, init=False)
    _stacked: dict[Any, Stacked] = field(default_factory=dict, init=False)
    _compiled: set[Any] = field(default_factory=set, init=False)  # programs whose kernels are
    _graphs: Graphs | None = field(default=None, init=False)
    _prepared: Prepared | None = field(default=None, init=False)
    _quickest: float = field(default=math.inf, init=False)  # seconds of a recorded round
    _signatures: Signatures = field(default_factory=Signatures, init=False)

    def choice(self) -> dict[str, Any]:
        return {"name": self.name, "chunk": self.chunk, "capture": self.capture}

    @property
    def device(self) -> torch.device:
        """Where the stack is."""
        return self.data.device

    @property
    def defers(self) -> bool:
        """Does `submit` come back before the numbers are there? Without a GPU there is nothing to wait for."""
        return self.device.type == "cuda"

    def expect(self, rounds: int) -> None:
        self.rounds_left = rounds

    def prepare(self, ids: Tensor, key: Tensor, order: Tensor) -> None:
        if self.defers:
            cohort = self.data.population.cohort(ids, order)
            self._prepared = Prepared(ids, key, order, None, 0, cohort, step_keys(cohort, key, self.data.keyed))

    def submit(self, request: Request) -> Pending[Any]:
        with cpu_threads(self.threads):
            return super().submit(request)

    def train(self, request: Train) -> Pending[Trained]:
        """On a GPU the answer is promised: the host need not wait before it says what happens to the total."""
        if not self.defers or len(request.ids) > self.chunk or not len(request.ids):
            return Pending.done(self.train_lanes([self.lane(request)])[0])
        return self._promised(request)

    def signature(self, request: Request) -> Hashable:
        if isinstance(request, Train):
            return self._signatures.train(request, self.store, self._planned(request)[0].plan.shape[2])
        if isinstance(request, Evaluate) and request.model is not None and not request.together and self.defers:
            return self._signatures.evaluate(request, self.data.evaluation)
        return None

    def leading(self, others: Sequence[Engine]) -> Engine:
        return replace(self, chunk=min(other.chunk for other in others if isinstance(other, Vector)))

    def submit_together(self, lanes: Sequence[tuple[Engine, Request]]) -> list[Any]:
        own = [(engine, request) for engine, request in lanes if isinstance(engine, Vector)]
        assert len(own) == len(lanes), "a stack is of one kind of engine"
        if isinstance(lanes[0][1], Evaluate):
            return self._evaluate_together([(e, r) for e, r in own if isinstance(r, Evaluate)])
        # with the program of the first such request: what was made for it is kept under it
        program = self._signatures.first(self.signature(lanes[0][1]), lanes[0][1])
        with phase("engine"), cpu_threads(self.threads):
            return self.train_lanes([e.lane(r, program) for e, r in own if isinstance(r, Train)])

    def lane(self, request: Train, program: Program | None = None) -> StackedRequest:
        """The request with its batches and its clients' state; with another program of the same structure, if given."""
        cohort, keys = self._planned(request)
        return StackedRequest(
            replace(request, program=program or request.program), cohort, keys, ClientRows(self.store, request)
        )

    def train_lanes(self, given: Sequence[StackedRequest]) -> list[Trained]:
        """Answers to requests that differ in numbers only: settings, what was sent, clients, key."""
        began = time.perf_counter()
        lanes, tallies = joined(given), [Tally(lane) for lane in given]
        order = longest_first(lanes.cohort.steps)
        waiting = list(torch.split(order, self.chunk)) if len(order) else []  # type: ignore[no-untyped-call]
        with torch.no_grad():
            while waiting:
                rows = waiting.pop(0)
                try:
                    share_out(tallies, lanes, rows, *self._train(lanes, rows))
                except torch.cuda.OutOfMemoryError as e:
                    waiting[:0] = self._halved(rows, e)
        self._maybe_compile(time.perf_counter() - began)
        return [tally.trained() for tally in tallies]

    def _promised(self, request: Train) -> Pending[Trained]:
        began = time.perf_counter()
        lane = self.lane(request)
        lanes, tally, part = joined([lane]), Tally(lane), None
        rows = longest_first(lane.cohort.steps)
        try:
            with torch.no_grad():
                out, info = self._train(lanes, rows)
                part = tally.lift(out, info)
        except torch.cuda.OutOfMemoryError as e:
            self._halved(rows, e)
        if part is None:  # not before the error is gone, and what it holds
            return self.train(request)

        def settle() -> Trained:
            good = None
            try:
                with torch.no_grad():
                    good = tally.add(out, rows, info, part)
            except torch.cuda.OutOfMemoryError as e:  # no room for those who are left, once somebody is left out
                self._halved(rows, e)
            if good is None:
                return self.train(request).result()
            self._maybe_compile(time.perf_counter() - began)
            return tally.trained()

        return _promise(part, lane, rows, settle)

    def _planned(self, request: Train) -> tuple[Cohort, Tensor]:
        """The batches of a request and the keys of its steps: made ahead, made for the same request before, or now."""
        ready = self._prepared
        if ready is None or not ready.fits(request):
            cohort = self.data.plan(request)
            keys = step_keys(cohort, request.key, self.data.keyed)
            asked = request.ids, request.key, request.order, request.max_steps, request.row_table
            ready = self._prepared = Prepared(*asked, cohort, keys)
        return ready.cohort, ready.keys

    def _maybe_compile(self, seconds: float) -> None:
        """Compile from now on, if the rounds to come will win more than that costs."""
        if self.compile != "auto" or self._graphs is None or not self._graphs.recorded:
            return
        self._quickest = min(self._quickest, seconds)
        if self._graphs.replays > _WATCHED and _SAVED * self._quickest * self.rounds_left > _COMPILING:
            self.compile = True
            self.notes.append(
                f"compiled, since {self.rounds_left} rounds of {1e3 * self._quickest:.3g} ms were to come"
            )
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
        self.notes.append(f"out of memory with {len(rows)} clients at a time, so {self.chunk}")
        self._forget()
        torch.cuda.empty_cache()
        return list(torch.split(rows, self.chunk))  # type: ignore[no-untyped-call]

    def _train(self, lanes: Lanes, rows: Tensor) -> tuple[Tree, Info]:
        """Every client of a chunk, from start to finish: stacked leaves, in the order of the chunk."""
        inputs = lanes.inputs(rows)
        mark, program = self._program(lanes)
        if self.defers and mark not in self._compiled and lanes.cohort.plan.shape[1]:
            self._compiled.add(mark)
            compile_ahead(partial(self._first_step, program, inputs.to(self.device)))
        at_work = active(lanes.cohort.steps[rows])
        if self.capture and self.device.type == "cuda" and not heard():
            self._graphs = self._graphs or Graphs(self.data.columns, self.device)
            replayed = self._graphs(mark, program, inputs, at_work, lanes.per_client, lanes.many)
            self._note_refusals(program)
            if replayed is not None:
                out, info = (_own(x) for x in replayed) if _held(lanes) else replayed
                return out, Info(**info)
        here = inputs if self.device.type == "cpu" else inputs.to(self.device)
        return self._eager(program, here, at_work, lanes.per_client, lanes.many), Info(**here.info)

    def _note_refusals(self, program: Stacked) -> None:
        """Why something is slower than it might be, once."""
        graphs = self._graphs.refused if self._graphs else None
        for what, why in (("no CUDA graph", graphs), ("not compiled", program.refused())):
            note = f"{what}: {why}"
            if why and note not in self.notes:
                self.notes.append(note)

    def _first_step(self, program: Stacked, given: Inputs) -> None:
        carry = program.start(len(given.transform_keys), given.settings, given.sent, given.own, kernel_layout)
        batch = (x[:, 0] for x in (given.plan, given.count, given.keys))
        program.step(given.settings, carry, given.sent, given.own, self.data.columns, *batch)

    def _eager(self, program: Stacked, given: Inputs, at_work: list[int], per_client: bool, many: bool) -> Tree:
        full = width = busy = len(given.transform_keys)
        now = given
        carry = program.start(full, given.settings, given.sent, given.own)
        done: list[Tree] = []  # of those who have finished; what the stack holds in their place no longer counts
        batches = zip(*map(_by_step, (given.plan, given.count, given.keys)), strict=True)
        for n, batch in zip(at_work, batches, strict=False):
            if n < busy:
                done.append(_own(tree.rows(carry, slice(n, busy))))
                busy = n
            if rounded(n, full) < width:
                width = rounded(n, full)
                carry, now = tree.rows(carry, slice(0, width)), given.first(width, per_client, many)
            carry = program.step(now.settings, carry, now.sent, now.own, self.data.columns, *(x[:width] for x in batch))
        if done:
            carry = tree.cat([tree.rows(carry, slice(0, busy)), *reversed(done)])
        ends = given.state, given.info, given.transform_keys
        return program.finish(given.settings, carry, given.sent, given.own, *ends)

    def _program(self, lanes: Lanes) -> tuple[Any, Stacked]:
        program = lanes.lanes[0].request.program
        mark = (program, lanes.per_client, lanes.many)
        if mark not in self._stacked:
            steps = ClientSteps(program, self.data.decode)
            self._stacked[mark] = stacked(steps, lanes.per_client, lanes.many, self.capture, self._compiling())
        return mark, self._stacked[mark]

    def _evaluate_together(self, lanes: Sequence[tuple[Vector, Evaluate]]) -> list[Any]:
        """Models side by side, where small ones leave a GPU idle."""
        data = [engine.data.evaluation for engine, _ in lanes if engine.data.evaluation is not None]
        asked = [measurement(d, request) for d, (_, request) in zip(data, lanes, strict=True)]
        models = max(1, self.chunk * max(1, self.data.population.batch) // data[0].batch)
        columns = [
            part for i in range(0, len(asked), models) for part in measure_side_by_side(data[0], asked[i : i + models])
        ]
        return [metrics_by_group(d, c, m.owner, m.groups) for d, c, m in zip(data, columns, asked, strict=True)]


def _promise(part: Any, lane: StackedRequest, order: Tensor, settle: Callable[[], Trained]) -> Pending[Trained]:
    """What will have come of a request if all numbers turn out to be finite; settled once, by whoever asks first.

    Whatever else turns out, the promised order is that of the promised partial aggregate.
    """
    settled = functools.cache(settle)
    examples = lane.cohort.examples
    promised = Trained(part, examples, lambda: settled().columns()._replace(order=order), float(examples.sum()))
    return Pending(promised, lambda: promised if bool(settled().finite.all()) else settled())


def _by_step(x: Tensor) -> Sequence[Tensor]:
    """(C, S, ...) as S times (C, ...)."""
    return x.transpose(0, 1).contiguous().unbind(0)


def _own(rows: Tree) -> Tree:
    return tree.map(torch.clone, rows)  # type: ignore[no-any-return]


def _held(lanes: Lanes) -> bool:
    """Is anything of the outcome held on to beyond the chunk?"""
    repeated = len(set(lanes.cohort.id.tolist())) < len(lanes.cohort)
    return repeated or not all(lane.request.program.reducer.spec().additive for lane in lanes.lanes)
