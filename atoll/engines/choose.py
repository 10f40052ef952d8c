"""Which engine: the one asked for, the fastest by a short measurement, or the loop where nothing else can run it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from atoll import tree
from atoll.core import Job
from atoll.engines.host import keep_buffers
from atoll.engines.loop import Loop
from atoll.engines.precision import Precision
from atoll.engines.program import Decode
from atoll.engines.threads import Threads
from atoll.engines.vector import Vector
from atoll.tree import Tree

AnyEngine = Loop | Vector | Threads
_SEEN = 30  # calls of a step after which it is captured, two steps a trial
_PATIENCE = 0.7  # seconds to try one engine
Count = Annotated[int, Field(ge=0)]
Gigabytes = Annotated[float, Field(gt=0)]
Compile = bool | Literal["auto"]


@dataclass(frozen=True)
class Choice:
    """What the user asked for."""

    name: Literal["auto", "loop", "vector", "threads"]
    chunk: int = 0
    memory_gb: float | None = None
    capture: bool = True
    workers: int = 0
    precision: Precision = "tf32"  # the same as float32 on a CPU
    compile: Compile = "auto"


def auto(
    chunk: Count = 0,
    memory_gb: Gigabytes | None = None,
    workers: Count = 0,
    precision: Precision = "tf32",
    compile: Compile = "auto",
) -> Choice:
    """The fastest engine for this model on this machine, by a short measurement that is remembered."""
    return Choice("auto", chunk, memory_gb, workers=workers, precision=precision, compile=compile)


def loop(precision: Precision = "tf32") -> Choice:
    """One client after the other with plain autograd: the reference, takes any module."""
    return Choice("loop", precision=precision)


def vector(
    chunk: Count = 0,
    memory_gb: Gigabytes | None = None,
    capture: bool = True,
    precision: Precision = "tf32",
    compile: Compile = "auto",
) -> Choice:
    """The whole cohort as one stack of tensors, `chunk` clients at a time (0: as many as fit in memory_gb).

    On a GPU steps are recorded as CUDA graphs, and compiled once the rounds to come will win more than that costs.
    """
    return Choice("vector", chunk, memory_gb, capture, precision=precision, compile=compile)


def threads(workers: Count = 0, precision: Precision = "tf32") -> Choice:
    """Clients side by side, one single-threaded worker per core: for convolutions on a CPU."""
    return Choice("threads", workers=workers, precision=precision)


@dataclass(frozen=True)
class Ground:
    """What an engine runs on."""

    columns: Tree
    decode: Decode
    device: torch.device
    keyed: bool
    refused: str | None = None  # why clients of this task cannot be stacked, where that is known


def make(choice: Choice, ground: Ground, chunk: int, trial: Job, cache: Path | None = None) -> AnyEngine:
    """The engine, tried on a small piece of real work (the first round's job)."""
    if ground.device.type == "cpu":
        keep_buffers()
    if choice.name == "loop":
        return _loop(ground, "chosen by name")
    stacked = Vector(ground.columns, ground.decode, ground.device, ground.keyed, chunk, choice.capture, choice.compile)
    refused = ground.refused or _refusal(stacked, small(trial, 2, 1))
    if refused:
        return _loop(ground, f"loop engine, because {refused}")
    if choice.name == "vector":
        return stacked
    if ground.device.type != "cpu":
        return replace(stacked, reason="on a GPU the stack is always the fastest")
    side_by_side = Threads(ground.columns, ground.decode, ground.device, ground.keyed, choice.workers)
    if choice.name == "threads":
        return side_by_side
    return _fastest(stacked, side_by_side, trial, cache)


def _fastest(stacked: Vector, side_by_side: Threads, trial: Job, cache: Path | None) -> AnyEngine:
    """The faster of the two on this work, from memory if it was measured before on this machine."""
    path = cache or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "atoll" / "engines.json"
    mark = _mark(trial, stacked.columns)
    known = _remembered(path)
    if mark not in known:
        known[mark] = {"vector": _seconds(stacked, trial), "threads": _seconds(side_by_side, trial)}
        _remember(path, known)
    times = known[mark]
    reason = f"measured: vector {times['vector'] * 1e3:.3g} ms, threads {times['threads'] * 1e3:.3g} ms"
    best = min(times, key=lambda k: times[k])
    return replace(stacked, reason=reason) if best == "vector" else replace(side_by_side, reason=reason)


@dataclass(frozen=True)
class Scratch:
    """A memory that can be read and forgets what is written."""

    inner: Any

    def read(self, ids: Tensor) -> Tree:
        """The real rows."""
        return self.inner.read(ids)  # type: ignore[no-any-return]

    def write(self, ids: Tensor, rows: Tree) -> None:
        """Nothing."""


def small(job: Job, clients: int, steps: int) -> Job:
    """The first few clients and steps of a job, with no effect on memory."""
    few = job.cohort.rows(slice(0, clients))
    cut = replace(few, steps=few.steps.clamp(max=steps), plan=few.plan[:, :steps], count=few.count[:, :steps])
    sent = tree.rows(job.sent, slice(0, clients)) if job.each else job.sent
    return replace(job, cohort=cut, memory=Scratch(job.memory), sent=sent)


def _refusal(engine: Vector, trial: Job) -> str | None:
    try:
        with _no_vmap_fallback():
            replace(engine, capture=False).run(trial)
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as e:
        return f"vmap cannot take this model ({str(e).strip().splitlines()[0][:160]})"
    return None


@contextmanager
def _no_vmap_fallback() -> Iterator[None]:
    """What vmap has no rule for it runs one by one, slowly and with a warning; the loop does that better."""
    allow = getattr(torch._C._functorch, "_set_vmap_fallback_enabled", None)
    if allow is None:
        yield
        return
    allow(False)
    try:
        yield
    finally:
        allow(True)


def _loop(ground: Ground, reason: str) -> Loop:
    seeded = ground.refused is not None and "random" in ground.refused
    return Loop(ground.columns, ground.decode, ground.device, ground.keyed, seeded, reason)


def _seconds(engine: AnyEngine, job: Job) -> float:
    """Seconds a client for the job once warm: one try if it is long, the best of a few, captured, if it is short."""
    trial = small(job, 8, 2)
    _timed(engine, trial)
    if _timed(engine, trial) > 0.3:
        return _timed(engine, trial) / len(trial.cohort)
    trial = small(job, 256, 4)
    fewest, until = _timed(engine, trial), time.perf_counter() + _PATIENCE
    for _ in range(2 * _SEEN):
        fewest = min(fewest, _timed(engine, trial))
        if time.perf_counter() > until:
            break
    return fewest / len(trial.cohort)


def _timed(engine: AnyEngine, job: Job) -> float:
    before = time.perf_counter()
    engine.run(job)
    return time.perf_counter() - before


def _mark(job: Job, columns: Tree) -> str:
    """What the answer may depend on: shapes, the algorithm, and the machine."""
    shapes = [(p, tuple(x.shape), str(x.dtype)) for p, x in tree.paths(job.sent)]
    data = [(p, tuple(x.shape[1:])) for p, x in tree.paths(columns)]
    size = 1 << max(0, len(job.cohort) - 1).bit_length()
    machine = (platform.processor(), platform.node(), os.cpu_count(), torch.__version__, torch.get_num_threads())
    parts = (type(job.algorithm).__name__, shapes, data, tuple(job.cohort.plan.shape[2:]), size, machine)
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()


def _remembered(path: Path) -> dict[str, dict[str, float]]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember(path: Path, known: dict[str, dict[str, float]]) -> None:
    """Kept if it can be; a home that cannot be written costs a new measurement next time, nothing else."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(known))
        draft.replace(path)
    except OSError:
        return


ENGINES: dict[str, Callable[..., Choice]] = {"auto": auto, "loop": loop, "vector": vector, "threads": threads}
