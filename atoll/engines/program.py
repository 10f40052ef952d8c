"""One client's whole round, in three pure pieces. No client axis anywhere: engines add it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Algorithm, Chain, Cohort, Info, Job, Reducer, Update, lift
from atoll.core.settings import inject
from atoll.phases import phase
from atoll.tree import Tree

Decode = Callable[[Tree], Tree]
SENT = ("value", "weight", "factors")  # of what a client ends with: its update, and what that is to be multiplied by


@dataclass(frozen=True, eq=False)
class Program:
    """Start, step and finish of one client. Settings come in as data, so that a new value is not a new program."""

    algorithm: Algorithm
    chain: Chain
    decode: Decode

    def start(self, settings: Tree, sent: Tree, memory: Tree) -> Tree:
        """What the client carries through its steps."""
        return inject(self.algorithm, settings["algorithm"]).start(sent, memory["algorithm"])

    def step(
        self, settings: Tree, carry: Tree, sent: Tree, memory: Tree, columns: Tree, rows: Tensor, n: Tensor, key: Tensor
    ) -> Tree:
        """One batch: the rows of the data, of which the first n are real."""
        with phase("gather"):
            batch = batch_of(self.decode, columns, rows, n, key)
        with phase("forward and backward"):
            return inject(self.algorithm, settings["algorithm"]).step(carry, sent, memory["algorithm"], batch)

    def finish(
        self, settings: Tree, carry: Tree, sent: Tree, memory: Tree, state: Tree, info: Info, key: Tensor
    ) -> Tree:
        """The update as it arrives at the server, the new memory, the mean training loss, and whether all is finite."""
        algorithm = inject(self.algorithm, settings["algorithm"])
        update, own = algorithm.finish(carry, sent, memory["algorithm"], info)
        with phase("transforms"):
            chain = inject(self.chain, settings.get("chain", {}))
            update, factors, kept = chain.client_factored(update, state, memory["chain"], key)
        loss = carry["loss"] / info.steps.clamp(min=1) if "loss" in carry else torch.zeros_like(update.weight)
        distinct_factors = {id(x): x for x in tree.leaves(factors)}  # several tensors may have one
        sums = [x.sum().float() for x in [*tree.leaves(update.value), *distinct_factors.values(), *tree.leaves(own)]]
        finite = torch.isfinite(torch.stack([loss, update.weight, *sums]).sum())
        memory = {"algorithm": own, "chain": kept}
        return {**update._asdict(), "factors": factors, "memory": memory, "loss": loss, "finite": finite}


def batch_of(decode: Decode, columns: Tree, rows: Tensor, n: Tensor, key: Tensor) -> Tree:
    """Gather and decode some rows of the data; the mask tells which are real."""
    batch = decode({**tree.rows(columns, rows), "key": key})
    mask = (torch.arange(rows.shape[-1], device=rows.device) < n).float()
    return {**batch, "mask": mask, "key": key}


def step_keys(cohort: Cohort, key: Tensor, needed: bool) -> Tensor:
    """(C, S, 2) keys, one for each client and step, addressed by client id; zeros where nothing draws from them."""
    c, s = cohort.plan.shape[:2]
    if not needed:
        return torch.zeros((1, 1, 2), dtype=torch.int64).expand(c, s, 2)
    k0, k1 = rng.fold_name(key, "steps").tolist()
    ids, steps = cohort.id.cpu().numpy()[:, None], torch.arange(s).numpy()[None, :]
    a, b = rng.threefry(k0, k1, ids & 0xFFFFFFFF, steps + (ids >> 32 << 20))
    return torch.stack([torch.from_numpy(a), torch.from_numpy(b)], -1)


def client_keys(job: Job) -> Tensor:
    """(C, 2) keys for the transforms, addressed by client id; zeros where nothing draws from them."""
    if not job.chain.draws():
        return torch.zeros((len(job.cohort), 2), dtype=torch.int64)
    k0, k1 = rng.fold_name(job.key, "transforms").tolist()
    ids = job.cohort.id.cpu().numpy()
    a, b = rng.threefry(k0, k1, ids & 0xFFFFFFFF, ids >> 32 & 0xFFFFFFFF)
    return torch.stack([torch.from_numpy(a), torch.from_numpy(b)], -1)


class Writes:
    """A round's new memory. Where a client comes twice, both copies must start from the old one: written at the end."""

    def __init__(self, job: Job) -> None:
        self.memory = job.memory
        self.repeated = len(set(job.cohort.id.tolist())) < len(job.cohort)
        self.waiting: list[tuple[Tensor, Tree]] = []

    def keep(self, ids: Tensor, rows: Tree) -> None:
        """Now, or at the end."""
        if self.repeated:
            self.waiting.append((ids, rows))
        else:
            self.memory.write(ids, rows)

    def finish(self) -> None:
        """The end."""
        for ids, rows in self.waiting:
            self.memory.write(ids, rows)


def lifted(reducer: Reducer, out: Tree) -> Any:
    """The partial result of a stack of updates."""
    with phase("reduce"):
        return lift(reducer, Update(out["value"], out["weight"]), out["factors"])


def alone(out: Tree) -> Tree:
    """One client's update as a stack of one."""
    return tree.map(lambda x: x[None], tree.select(out, SENT))  # type: ignore[no-any-return]


def merged(reducer: Reducer, parts: list[Any]) -> Any:
    """Partial results as one, in the order given; None if there are none."""
    if not parts:
        return None
    with phase("reduce"):
        total = parts[0]
        for part in parts[1:]:
            total = total.merge(part)
        return reducer.finish(total)
