"""Which engine: the one asked for, the fastest, or the loop where nothing else can run it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn

from atoll.core import Train
from atoll.engines.autotune import fastest, is_dense, small
from atoll.engines.client_state import ClientStore
from atoll.engines.device_data import DeviceData
from atoll.engines.local import LocalEngine
from atoll.engines.loop import Loop
from atoll.engines.malloc import KEPT_BYTES, keep_buffers
from atoll.engines.precision import Precision, processor_has_bfloat16
from atoll.engines.threads import Threads
from atoll.engines.vector import Vector

Count = Annotated[int, Field(ge=0)]
Workers = Annotated[int, Field(ge=0, le=1024)]  # threads
Gigabytes = Annotated[float, Field(gt=0, le=1e6)]
Compile = bool | Literal["auto"]
_SMALL = 5e7  # operations of a step that are done before a second thread has begun
_MANY = 64  # clients in a stack that is worth cutting


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
    workers: Workers = 0,
    precision: Precision = "tf32",
    compile: Compile = "auto",
    spill: str | None = None,
) -> Choice:
    """The fastest engine for this model on this machine, by a rule, or by a short measurement.

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
    workers: Workers = 0, memory_gb: Gigabytes | None = None, precision: Precision = "tf32", spill: str | None = None
) -> Choice:
    """Clients side by side, one single-threaded worker per core: for convolutions on a CPU."""
    return Choice("threads", memory_gb=memory_gb, workers=workers, precision=precision, spill=spill)


def make(
    choice: Choice, data: DeviceData, store: ClientStore, chunk: int, trial: Train, model: nn.Module
) -> LocalEngine:
    """The engine asked for, or the loop where nothing else can run it; tried on the first round's request.

    A GPU: always the stack. A CPU: the stack where layers are dense, else whichever is measured to be the fastest.
    """
    if data.device.type == "cpu":
        keep_buffers()
    engine = _engine(choice, data, store, chunk, trial, model)
    if choice.precision == "bfloat16" and data.device.type == "cpu" and processor_has_bfloat16() is False:
        engine.notes.append("bfloat16: this processor has no such products, so that float32 would be quicker")
    return engine


def _engine(
    choice: Choice, data: DeviceData, store: ClientStore, chunk: int, trial: Train, model: nn.Module
) -> LocalEngine:
    if choice.name == "loop":
        return Loop(data, store)
    small_kernels = data.device.type == "cpu" and is_dense(model) and _operations(data, trial, model) < _SMALL
    if data.device.type == "cpu" and is_dense(model) and not choice.chunk:
        chunk = min(chunk, _reused(data, trial, model))
    stacked = Vector(data, store, chunk, choice.capture, choice.compile, threads=1 if small_kernels else None)
    refused = data.unstackable or _refusal(stacked, small(trial, 2, 1))
    if refused:
        return Loop(data, store, notes=[f"loop engine, because {refused}"])
    if choice.name == "vector":
        return stacked
    if data.device.type != "cpu":
        return replace(stacked, notes=["on a GPU the stack is always the fastest"])
    if choice.name == "threads":
        return Threads(data, store, choice.workers)
    if is_dense(model):
        how = ", of small kernels: one thread" if small_kernels else ""
        return replace(stacked, notes=[f"dense layers of many clients are batched products: one stack{how}"])
    engines = {"vector": stacked, "threads": Threads(data, store, choice.workers), "loop": Loop(data, store)}
    name, note = fastest(engines, trial)
    engine = engines[name]
    engine.notes = [note]
    return engine


def _operations(data: DeviceData, trial: Train, model: nn.Module) -> float:
    """Of a step of the whole first cohort, where all layers are dense: forward, and twice that backward."""
    return 6.0 * len(trial.ids) * _width(data, trial) * sum(x.numel() for x in model.parameters())


def _reused(data: DeviceData, trial: Train, model: nn.Module) -> int:
    """Clients whose stacked tensors the allocator keeps for the next step; no bound where those are only a few.

    A larger tensor's pages are faulted in anew by every kernel that writes one, which doubles what a client costs.
    """
    width = _width(data, trial)
    sizes = (x.element_size() * max(x.numel(), width * max(x.shape, default=1)) for x in model.parameters())
    clients = (KEPT_BYTES - 4096) // max(sizes, default=1)  # with room for the allocator's own notes
    return clients if clients >= _MANY else 1 << 30


def _width(data: DeviceData, trial: Train) -> int:
    return data.plan(small(trial, 2, 1)).plan.shape[2]


def _refusal(engine: Vector, trial: Train) -> str | None:
    try:
        with _no_vmap_fallback():
            replace(engine, capture=False).run(trial)
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as e:
        why = shorten(str(e).strip().splitlines()[0], 200, placeholder=" ...")
        return f"vmap cannot take this model or algorithm ({why})"
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


ENGINES: dict[str, Callable[..., Choice]] = {"auto": auto, "loop": loop, "vector": vector, "threads": threads}
