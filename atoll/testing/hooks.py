"""The seven hooks by themselves: nothing but tensors, nothing written to, states that keep their structure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Algorithm, Info, Total, Update
from atoll.testing.problems import Problem
from atoll.testing.verdict import need, need_same, need_shape
from atoll.tree import Tree

_SHAPE = "a key that is added or dropped on the way, or arithmetic that changes a type"


def check_hooks(algorithm: Algorithm, problem: Problem) -> None:
    """Two rounds of one client by hand, every hook called twice and watched."""
    model = problem.model
    first_server = server = _call("init", algorithm.init, model)
    first_memory = memory = _call("memory", algorithm.memory, model)
    _has_model("init", server)
    sent = carry = None
    for _ in range(2):
        now = _call("send", algorithm.send, server)
        sent = _kept(now, sent, "send")
        begun = _call("start", algorithm.start, sent, memory)
        _has_model("start", begun)
        carry = _kept(begun, carry, "start")
        for batch in _batches(problem):
            carry = _kept(_call("step", algorithm.step, carry, sent, memory, batch), carry, "step")
        update, memory = _finished(algorithm, carry, sent, memory, problem)
        need_shape(memory, first_memory, "finish keeps the structure of the memory", _SHAPE)
        value = tree.scale(update.value, update.weight)
        total = Total(value, update.weight, torch.ones_like(update.weight))
        server = _call("apply", algorithm.apply, server, total)
        need_shape(server, first_server, "apply keeps the structure of the server's state", _SHAPE)


def _finished(algorithm: Algorithm, carry: Tree, sent: Tree, memory: Tree, problem: Problem) -> tuple[Update, Tree]:
    info = Info(torch.tensor(3), torch.tensor(7.0), torch.tensor(float(len(_batches(problem)))))
    out = _call("finish", algorithm.finish, carry, sent, memory, info)
    return out["0"]["value"], out["1"] if False else out["1"]  # type: ignore[return-value]
