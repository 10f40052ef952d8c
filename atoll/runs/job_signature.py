"""Which jobs differ in numbers only, so that one stack can do them all."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from atoll import rng, tree
from atoll.core import Job
from atoll.core.settings import names
from atoll.tasks import Supervised
from atoll.tree import Tree

_NOBODY = torch.zeros(0, dtype=torch.int64)


class Marks:
    """Says of what structure a job is; remembers the skeletons of algorithms and chains, which stay the same."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Hashable]] = {}  # with the object, so that no other one gets its id

    def __call__(self, job: Job) -> Hashable:
        """Equal for jobs of one structure: the same program on tensors of the same shapes."""
        return (
            self._skeleton(job.algorithm),
            self._skeleton(job.chain),
            skeleton(job.reducer),
            job.each,
            job.cohort.plan.shape[2],
            shapes(job.settings),
            shapes(job.sent, 1 if job.each else 0),
            shapes(job.state),
            shapes(job.memory.read(_NOBODY)),
        )

    def _skeleton(self, thing: Any) -> Hashable:
        if id(thing) not in self._known:
            self._known[id(thing)] = thing, skeleton(thing)
        return self._known[id(thing)][1]


def skeleton(thing: Any) -> Hashable:
    """What is left of a dataclass without its numeric settings (`core/settings.py`), which are data."""
    if isinstance(thing, Supervised):
        return _task(thing)
    if is_dataclass(thing) and not isinstance(thing, type):
        numbers = (*names(type(thing)), *getattr(thing, "calibrated_options", ()))  # a wish becomes a number at set-up
        rest = ((f.name, skeleton(getattr(thing, f.name))) for f in fields(thing) if f.name not in numbers)
        return type(thing), tuple(rest)
    if isinstance(thing, list | tuple):
        return tuple(skeleton(x) for x in thing)
    if isinstance(thing, dict):
        return tuple((k, skeleton(v)) for k, v in thing.items())
    return thing if isinstance(thing, str | int | float | None) else id(thing)


def shapes(state: Tree, axes: int = 0) -> Hashable:
    """The names, shapes and types of all tensors, without the first few axes."""
    return tuple((path, tuple(x.shape[axes:]), x.dtype) for path, x in tree.paths(state))


def _task(task: Supervised) -> Hashable:
    """Modules of one entry differ in what was drawn: what is learned comes as data, what is constant must be equal."""
    learned = task.init(rng.key(0))
    there = {**dict(task.model.named_parameters()), **dict(task.model.named_buffers())}
    constant = {k: v for k, v in there.items() if k not in learned["params"] and k not in learned["buffers"]}
    return type(task.model), type(task.objective), task.batch_norm, tree.digest(constant)
