"""The mean by secure aggregation: clients' residues go through a protocol, and only their sum comes out."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Info, Reducer, Spec, Stack, Total, Update
from atoll.errors import ConfigError, ProtocolError
from atoll.protocols import NEVER, ProtocolCosts, SecureAggregation, Transcript, run_protocol
from atoll.tree import Tree

SECURE = "secure"  # the name of its diagnostics
PLAN = "plan"  # in its state, put there by the round


@dataclass(frozen=True)
class SecureMean(Reducer[Stack]):
    """Keeps every client's residues until `finish`, which hands each to its client and drives the protocol.

    Its state is {}, or {"plan"}: the round as it was planned, {"ids", "lost_at", "vector_step", "round", "void"}, where
    not everybody stays. Whoever was planned but has no residues, since it is lost before its vector or since its update
    is no number, holds zeros that it never sends. A void round is driven to where it ends; its total is that of nobody.
    """

    protocol: SecureAggregation

    def spec(self) -> Spec:
        return Spec(additive=True)

    def zero(self, like: Tree) -> Stack:
        return Stack.zero(tree.map(lambda x: x.long(), like))

    def lift(self, updates: Update, info: Info, key: Tensor) -> Stack:
        copied = Info(*(x.clone() for x in info))  # engines use their memory again
        return Stack(Update(tree.map(lambda x: x.long(), updates.value), updates.weight.clone()), copied)

    def merge(self, a: Stack, b: Stack) -> Stack:
        return a.merge(b)

    def finish(self, partial: Stack, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        present: list[int] = partial.info.id.tolist()
        plan = state.get(PLAN) or _everybody(present)
        own = _vectors(partial, present, plan["ids"].tolist())
        lost = _lost(plan, present)
        log, number, void, result = Transcript(), int(plan["round"]), bool(plan["void"]), None
        options: dict[str, Any] = {"over_wire": True, "round": number, "keep_messages": False, "log": log}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # cautions are among the notes of a run
                result, _ = run_protocol(self.protocol, own, key.cpu(), lambda step, id: step >= lost[id], **options)
        except (ProtocolError, ConfigError) as e:  # or one that is not for so few
            if not void:
                raise ProtocolError(f"round {number + 1}, secure aggregation: {e}{_unusable(plan, present)}") from e
        said = {SECURE: {"costs": torch.tensor(ProtocolCosts.of(log, len(own)), dtype=torch.float64)}}
        if void or result is None or not present:
            return Total.zero(_one(partial)), {}, said
        _check_ids(result["ids"].tolist(), present)
        return _total(result["sum"], partial), {}, said


def _everybody(ids: list[int]) -> Tree:
    never, zero = torch.full((len(ids),), NEVER), torch.tensor(0)
    facts = {"vector_step": zero, "round": zero, "void": zero}
    return {"ids": torch.tensor(ids, dtype=torch.int64), "lost_at": never, **facts}


def _lost(plan: Tree, present: list[int]) -> dict[int, int]:
    """The first answer that each client does not give."""
    there, vector_step = set(present), int(plan["vector_step"])
    planned = zip(plan["ids"].tolist(), plan["lost_at"].tolist(), strict=True)
    return {id: at if id in there else min(at, vector_step) for id, at in planned}


def _unusable(plan: Tree, present: list[int]) -> str:
    """Why there may be fewer than were planned."""
    arrives = plan["ids"][plan["lost_at"] > plan["vector_step"]].tolist()
    missing = len(set(arrives) - set(present))
    return f" The updates of {missing} clients were no numbers: lower algorithm.lr." if missing else ""


def _vectors(partial: Stack, present: list[int], planned: list[int]) -> dict[int, Tree]:
    """What each client holds, in the order of the plan; on the host."""
    flat = torch.cat([x.reshape(len(x), _numel(x)) for x in tree.leaves(partial.updates.value)], 1).cpu()
    rows: dict[int, Tensor] = dict(zip(present, flat, strict=True))
    nothing = flat.new_zeros(flat.shape[1])
    return {id: {"vector": rows.get(id, nothing)} for id in planned}


def _numel(x: Tensor) -> int:
    """Of one row, also where there is none."""
    return int(torch.Size(x.shape[1:]).numel())


def _one(partial: Stack) -> Tree:
    return tree.map(lambda x: x.new_zeros(x.shape[1:], dtype=torch.float64), partial.updates.value)  # type: ignore[no-any-return]


def _total(sum_of_all: Tensor, partial: Stack) -> Total:
    """The sum as the residues of an update: integers in float64, as transforms have them."""
    weights, at = partial.updates.weight, 0

    def part(x: Tensor) -> Any:
        nonlocal at
        at += _numel(x)
        return sum_of_all[at - _numel(x) : at].reshape(x.shape[1:]).to(x.device, torch.float64)

    value = tree.map(part, partial.updates.value)
    return Total(value, weights.sum(), torch.full_like(weights[0], len(weights)))


def _check_ids(summed: list[int], present: list[int]) -> None:
    if summed != sorted(present):
        odd = sorted(set(summed) ^ set(present))
        raise ProtocolError(
            f"secure aggregation: the sum is of other clients than those whose vectors arrived (client {odd[0]}). "
            "`atoll check` tries a protocol by its import path: does it keep to its contract?"
        )
