"""What every model must do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from atoll import rng, tree
from atoll.errors import AtollError, ConformanceError
from atoll.runs import Run, simulate
from atoll.testing.assertions import need_close

MakeModule = Callable[[tuple[int, ...], int], nn.Module]
_SHAPES = ((12,), (1, 28, 28), (3, 32, 32), (1, 8, 8), (64,), (784,))
_CLASSES, _ROWS = 10, 24


def check_model(make: MakeModule) -> list[str]:
    """The names of the checks that a model passes, or a ConformanceError that says which one it does not.

    `make` takes the shape of one example and the number of outputs. It is tried on a few shapes, to classify.
    """
    problems = []
    for shape in _SHAPES:
        try:
            loop = _trained(make, shape, "loop")
        except (AtollError, RuntimeError) as e:
            problems.append(f"{shape}: {str(e).strip().splitlines()[0]}")
            continue
        return [f"classifies examples of shape {shape}", "trains", *_stacks(make, shape, loop)]
    raise ConformanceError("takes examples of a usual shape: none of them. " + " ".join(problems))


def _stacks(make: MakeModule, shape: tuple[int, ...], loop: Run) -> list[str]:
    """Under vmap it is the same; a model that cannot be stacked runs on the loop, and that is no mistake."""
    stacked = _trained(make, shape, "auto")
    need_close(stacked.params, loop.params, "same stacked as one by one", "a sum over the batch, or a buffer", 1e-3)
    return [f"same on engine {stacked.info['engine']['name']}"]


def _trained(make: MakeModule, shape: tuple[int, ...], engine: str) -> Run:
    x = rng.normal(rng.key("x"), (_ROWS, *shape))
    y = torch.arange(_ROWS) % _CLASSES
    clients = [range(0, 8), range(8, 16), range(16, _ROWS)]
    options: dict[str, Any] = {"algorithm": {"name": "fedavg", "lr": 0.01}, "rounds": 2, "device": "cpu"}
    run = simulate(lambda: make(shape, _CLASSES), (x, y), clients=clients, engine=engine, **options)
    before = simulate(lambda: make(shape, _CLASSES), (x, y), clients=clients, engine=engine, **{**options, "rounds": 1})
    if tree.digest(run.params) == tree.digest(before.params):
        raise ConformanceError("trains: two rounds leave the model as one does. Usual cause: detached outputs.")
    return run
