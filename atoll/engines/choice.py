"""Which engine: the one asked for, the fastest by a short measurement, or the loop where nothing else can run it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field

from atoll.core import Job
from atoll.engines.autotune import Probe, default_path, mark, small
from atoll.engines.loop import Loop
from atoll.engines.malloc import keep_buffers
from atoll.engines.precision import Precision
from atoll.engines.program import Decode
from atoll.engines.threads import Threads
from atoll.engines.vector.vector import Vector
from atoll.tree import Tree

AnyEngine = Loop | Vector | Threads
_CHUNKS = (16, 4)  # of a stack that may stay in the cache where the whole cohort does not
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
    spill: str | None = None


def auto(
    chunk: Count = 0,
    memory_gb: Gigabytes | None = None,
    workers: Count = 0,
    precision: Precision = "tf32",
    compile: Compile = "auto",
    spill: str | None = None,
) -> Choice:
    """The fastest engine for this model on this machine, by a short measurement that is remembered.

    memory_gb: for the stack, and for the clients' memory (a quarter of the machine's, half of a GPU's). What clients
    keep beyond that goes to a sparse file in the folder `spill`, or else in the run's own; it is gone afterwards.
    """
    return Choice("auto", chunk, memory_gb, workers=workers, precision=precision, compile=compile, spill=spill)


def loop(memory_gb: Gigabytes | None = None, precision: Precision = "tf32", spill: str | None = None) -> Choice:
    """One client after the other with plain autograd: the reference, takes any module."""
    return Choice("loop", memory_gb=memory_gb, precision=precision, spill=spill)


def vector(
    chunk: Count = 0,
    memory_gb: Gigabytes | None = None,
    capture: bool = True,
    precision: Precision = "tf32",
    compile: Compile = "auto",
    spill: str | None = None,
) -> Choice:
    """The whole cohort as one stack of tensors, `chunk` clients at a time (0: as many as fit in memory_gb).

    On a GPU steps are recorded as CUDA graphs, and compiled once the rounds to come will win more than that costs.
    """
    return Choice("vector", chunk, memory_gb, capture, precision=precision, compile=compile, spill=spill)


def threads(
    workers: Count = 0,
    memory_gb: Gigabytes | None = None,
    precision: Precision = "tf32",
    spill: str | None = None,
) -> Choice:
    """Clients side by side, one single-threaded worker per core: for convolutions on a CPU."""
    return Choice("threads", memory_gb=memory_gb, workers=workers, precision=precision, spill=spill)


@dataclass(frozen=True)
class Ground:
    """What an engine runs on."""

    columns: Tree
    decode: Decode
    device: torch.device
    keyed: bool
    refused: str | None = None  # why clients of this task cannot be stacked, where that is known


def make(
    choice: Choice, ground: Ground, chunk: int, trial: Job, cache: Path | None = None, probe: Probe | None = None
) -> AnyEngine:
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
    if choice.name == "threads":
        return _threads(ground, choice)
    engines = candidates(choice, ground, stacked, len(trial.cohort))
    answer = (probe or Probe(cache or default_path())).fastest(engines, trial, work_mark(choice, ground, trial))
    return replace(engines[answer.best], reason=answer.words())


def candidates(choice: Choice, ground: Ground, stacked: Vector, clients: int) -> dict[str, AnyEngine]:
    """What `auto` chooses from: the first where nothing is faster; the last so that none is slower than it."""
    own = () if choice.chunk else [c for c in _CHUNKS if c < min(stacked.chunk, clients)]
    chunked = {f"vector by {c}": replace(stacked, chunk=c) for c in own}
    return {"vector": stacked, **chunked, "threads": _threads(ground, choice), "loop": _loop(ground, "")}


def taken(engine: AnyEngine) -> str:
    """The name under which an engine was measured."""
    chunked = isinstance(engine, Vector) and engine.chunk in _CHUNKS
    return f"vector by {engine.chunk}" if isinstance(engine, Vector) and chunked else engine.name


def work_mark(choice: Choice, ground: Ground, trial: Job) -> str:
    """The name of this work in the memory of measurements."""
    return mark(trial, ground.columns, choice.chunk, choice.workers, choice.memory_gb)


def _threads(ground: Ground, choice: Choice) -> Threads:
    return Threads(ground.columns, ground.decode, ground.device, ground.keyed, choice.workers)


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


ENGINES: dict[str, Callable[..., Choice]] = {"auto": auto, "loop": loop, "vector": vector, "threads": threads}
