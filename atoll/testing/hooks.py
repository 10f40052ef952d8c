"""The seven hooks by themselves: nothing but tensors, nothing written to, states that keep their structure."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Algorithm, Info, Total, Update
from atoll.testing.assertions import need, need_same, need_shape
from atoll.testing.problems import SIZES, Problem
from atoll.testing.traits import check_places, check_records
from atoll.tree import Tree

_SHAPE = "a key that is added or dropped on the way, or arithmetic that changes a type"


def check_hooks(algorithm: Algorithm, problem: Problem) -> None:
    """Two rounds of one client by hand; every hook is called twice and watched."""
    client = 3
    init_key, apply_key = rng.key("server"), rng.key("apply")
    server = _call("init", algorithm.init, problem.model, init_key)
    own = _call("client_state", algorithm.client_state, problem.model)
    need(isinstance(own, dict), "client_state gives a tree", type(own).__name__, "a dict ({} for nothing)", "no return")
    sent = _call("send", algorithm.send, server)
    begun = _call("start", algorithm.start, sent, own)
    _has_model("the server's state", server)
    _has_model("what start gives", begun)
    check_records(algorithm, server)
    for _ in range(2):
        carry = begun
        for batch in _batches(problem, client):
            carry = _kept("step", "carry", carry, _call("step", algorithm.step, carry, sent, own, batch))
        steps = torch.tensor(float(len(_batches(problem, client))))
        info = Info(torch.tensor(client), torch.tensor(float(SIZES[client])), steps)
        update, new = _call("finish", algorithm.finish, carry, sent, own, info)
        elsewhere, _ = algorithm.finish(carry, sent, own, info._replace(id=torch.tensor(client - 1)))
        check_places(algorithm, update.value, elsewhere.value)
        own = _kept("finish", "client state", own, new)
        total = Total(tree.scale(update.value, update.weight), update.weight, torch.ones_like(update.weight))
        applied = _call("apply", algorithm.apply, server, total, apply_key)
        server = _kept("apply", "server's state", server, applied)
        sent = _kept("send", "sent tree", sent, _call("send", algorithm.send, server))
        begun = _kept("start", "carry", begun, _call("start", algorithm.start, sent, own))


def _call(name: str, hook: Callable[..., Any], *args: Any) -> Any:
    """What the hook gives, if it gives it twice and leaves what it was given alone."""
    _takes(name, hook, len(args))
    before = [tree.digest(_plain(a)) for a in args]
    out = hook(*args)
    copy = tree.map(torch.clone, _tensors(name, out))
    again = _tensors(name, hook(*args))
    touched = [i for i, a in enumerate(args) if tree.digest(_plain(a)) != before[i]]
    cause = "an operation in place (add_, +=, a key set in the dict that came in)"
    need(not touched, f"{name} leaves what it is given alone", f"argument {touched} changed", "no change", cause)
    need_same(again, copy, f"{name} gives the same twice", "a draw without a key, or state kept in the object")
    return out


def _takes(name: str, hook: Callable[..., Any], arguments: int) -> None:
    wanted = inspect.signature(getattr(Algorithm, name)).parameters
    order = ", ".join(list(wanted)[1:])
    parameters = [p for p in inspect.signature(hook).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    good = len(parameters) == arguments or any(p.kind is p.VAR_POSITIONAL for p in parameters)
    cause = "a hook for an earlier version: init and apply take a key"
    need(good, f"{name} takes what it is given", f"{len(parameters)} arguments", f"{name}({order})", cause)


def _kept(hook: str, what: str, old: Tree, new: Tree) -> Tree:
    need_shape(new, old, f"{hook} keeps the structure of the {what}", _SHAPE)
    return new


def _tensors(hook: str, out: Any) -> Tree:
    """The output as one tree, if there are only tensors in it."""
    found = _plain(out)
    odd = [f"{p} is a {type(x).__name__}" for p, x in tree.paths(found) if not isinstance(x, Tensor)]
    cause = "a Python number or a list in a state; keep it as a 0-dim tensor, so that it can be stacked"
    need(not odd, f"{hook} gives only tensors", "; ".join(odd[:3]), "a tensor in every place", cause)
    return found


def _plain(value: Any) -> Tree:
    """Updates, totals and pairs as trees."""
    if isinstance(value, Update | Info):
        return {k: _plain(v) if isinstance(v, dict) else v for k, v in value._asdict().items()}
    if isinstance(value, Total):
        return {"value": value.value, "weight": value.weight, "count": value.count}
    if isinstance(value, tuple):
        return {str(i): _plain(v) for i, v in enumerate(value)}
    return value if isinstance(value, dict) else {"": value}


def _has_model(what: str, state: Tree) -> None:
    missing = [k for k in ("params", "buffers") if k not in state]
    cause = "another name for the model; metrics and evaluation look for these two"
    need(not missing, f"{what} has params and buffers", f"no {missing}", "both", cause)


def _batches(problem: Problem, client: int) -> list[Tree]:
    """One client's batches, the last one padded."""
    found = []
    for i, rows in enumerate(problem.partition.of(client).split(problem.batch)):  # type: ignore[no-untyped-call]
        n = len(rows)
        padded = torch.cat([rows, rows[:1].expand(problem.batch - n)])
        mask = (torch.arange(problem.batch) < n).float()
        found.append({**tree.rows(problem.columns, padded), "mask": mask, "key": torch.tensor([5, i])})
    return found
