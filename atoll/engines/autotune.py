"""Which engine is the fastest on this CPU: a rule where it is clear, one short measurement where it is not.

Dense layers of many clients are batched matrix products: the stack wins by far. Whatever else a model has
(convolutions, recurrence, attention) depends on the machine and on its size, so engines take turns on a small piece of
the first round, and the best turn of each counts: other work on the machine only ever adds to a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from atoll.core import Engine, Train
from atoll.tasks import LoraLinear

# No embedding: tokens are not read by these alone.
_DENSE = (nn.Linear, LoraLinear, nn.Flatten, nn.Dropout, nn.LayerNorm, nn.Identity)
_AROUND = (nn.Sequential, nn.ModuleList, nn.ModuleDict)  # add nothing to the layers in them
_TURNS = 4  # of each engine; the first makes what it needs and does not count
_SECONDS = 3.0  # in all, about
_CLIENTS, _STEPS = 16, 4  # of the first round, at most
_TIE = 1.05  # a smaller gain is none: the engine named first stays


def is_dense(model: nn.Module) -> bool:
    """Has it, as it was before a task replaced layers, nothing but dense layers and functions of single numbers?

    >>> is_dense(nn.Sequential(nn.Linear(2, 2), nn.ReLU())), is_dense(nn.Conv2d(1, 1, 3))
    (True, False)
    """
    return all(type(m) in (*_DENSE, *_AROUND) or _is_function(m) or _is_ours(m) for m in model.modules())


def _is_function(m: nn.Module) -> bool:
    """Of single numbers, with nothing to learn; torch keeps attention in the same place."""
    return type(m).__module__ == "torch.nn.modules.activation" and not list(m.parameters())


def _is_ours(m: nn.Module) -> bool:
    """A model of atoll, which only puts layers together."""
    return (
        type(m).__module__.startswith("atoll.") and bool(list(m.children())) and not list(m.parameters(recurse=False))
    )


def fastest(engines: Mapping[str, Engine], trial: Train) -> tuple[str, str]:
    """The name of the fastest engine, and what was measured, in words."""
    seconds = measure(engines, trial)
    best = min(seconds.values())
    name = next(n for n, s in seconds.items() if s <= _TIE * best)
    measured = ", ".join(f"{k} {v * 1e3:.3g} ms" for k, v in seconds.items())
    return name, f"measured: {measured} (a client's first {_STEPS} steps)"


def measure(engines: Mapping[str, Engine], trial: Train) -> dict[str, float]:
    """Seconds of a client's first steps on each engine, in turns, the best of them."""
    piece, began = small(trial, _CLIENTS, _STEPS), time.perf_counter()
    best = dict.fromkeys(engines, math.inf)
    for turn in range(_TURNS):
        for name, engine in engines.items():
            before = time.perf_counter()
            engine.run(piece)
            if turn or time.perf_counter() - began > _SECONDS:
                best[name] = min(best[name], (time.perf_counter() - before) / len(piece.ids))
        if turn and time.perf_counter() - began > _SECONDS:
            break
    return best


def small(trial: Train, clients: int, steps: int) -> Train:
    """The first few clients and steps of a request, with no effect on what clients keep."""
    return replace(trial.rows(slice(0, clients)), max_steps=steps, client_state="read")
