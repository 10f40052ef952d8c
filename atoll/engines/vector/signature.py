"""Which requests differ in numbers only, so that one stack can do them all."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from atoll import tree
from atoll.core import Evaluate, Program, Request, Task, Train, program_structure
from atoll.engines.client_state import ClientStore
from atoll.engines.device_data import EvaluationData
from atoll.tree import Tree

_NOBODY = torch.zeros(0, dtype=torch.int64)


class Signatures:
    """Says of what structure a request is; remembers the structures of programs, which stay the same."""

    def __init__(self) -> None:
        self._known: dict[Program, Hashable] = {}
        self._first: dict[Hashable, Program] = {}
        self._tasks: dict[int, tuple[Task, Hashable]] = {}  # by identity, held so that none is taken for another

    def train(self, request: Train, store: ClientStore, batch: int) -> Hashable:
        """Equal for requests of one structure: the same program on tensors of the same shapes."""
        return (
            self._structure(request.program),
            request.per_client,
            request.max_steps == 0,
            batch,
            shapes(request.settings),
            shapes(request.sent, 1 if request.per_client else 0),
            shapes(request.state, 1 if request.per_client else 0),
            request.client_state,
            shapes(store.read(_NOBODY)),
        )

    def evaluate(self, request: Evaluate, data: EvaluationData | None) -> Hashable:
        """Equal for models that can be measured as one stack."""
        assert data is not None
        columns = {"test": data.test, "probe": data.probe, "own": data.columns}[request.on]
        return request.on, id(columns), shapes(request.model or {}), data.batch, self._task(data.task)

    def first(self, signature: Hashable, request: Request) -> Program:
        """The program of the first such request ever."""
        assert isinstance(request, Train)
        return self._first.setdefault(signature, request.program)

    def _task(self, task: Task) -> Hashable:
        """Models of two tasks are of one stack where what is constant in them is equal."""
        if id(task) not in self._tasks:
            self._tasks[id(task)] = task, program_structure(task)
        return self._tasks[id(task)][1]

    def _structure(self, program: Program) -> Hashable:
        if program not in self._known:
            parts: tuple[Any, ...] = (program.algorithm, program.chain, program.reducer)
            self._known[program] = tuple(map(program_structure, parts))
        return self._known[program]


def shapes(state: Tree, axes: int = 0) -> Hashable:
    """The names, shapes and types of all tensors, without the first few axes."""
    return tuple((path, tuple(x.shape[axes:]), x.dtype) for path, x in tree.paths(state))
