"""One client's whole round, in three pure pieces. No client axis anywhere: engines add it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Cohort, Info, Program, Train, Update, inject
from atoll.engines.client_state import ClientStore
from atoll.engines.device_data import Decode
from atoll.phases import phase
from atoll.tree import Tree
from atoll.wire import EMPTY_BYTES, lengths

SENT = ("value", "weight", "by")  # of what a client ends with: its update, and what that is to be multiplied by
TOO_LONG = float("-inf")  # the loss of a client whose update breaks a limit that a mechanism relies on
_NO_STATE: Tree = {"algorithm": {}, "chain": {}}


@dataclass(frozen=True, eq=False)
class ClientSteps:
    """Start, step and finish of one client. Settings come in as data, so that a new value is not a new program."""

    program: Program
    decode: Decode

    def start(self, settings: Tree, sent: Tree, own: Tree) -> Tree:
        """What the client carries through its steps."""
        return inject(self.program.algorithm, settings["algorithm"]).start(sent, own["algorithm"])

    def step(
        self, settings: Tree, carry: Tree, sent: Tree, own: Tree, columns: Tree, rows: Tensor, n: Tensor, key: Tensor
    ) -> Tree:
        """One batch: the rows of the data, of which the first n are real."""
        with phase("gather"):
            batch = batch_of(self.decode, columns, rows, n, key)
        with phase("forward and backward"):
            return inject(self.program.algorithm, settings["algorithm"]).step(carry, sent, own["algorithm"], batch)

    def finish(self, settings: Tree, carry: Tree, sent: Tree, own: Tree, state: Tree, info: Info, key: Tensor) -> Tree:
        """The update as it arrives at the server, the new client state, the mean loss, and whether all is finite."""
        algorithm = inject(self.program.algorithm, settings["algorithm"])
        update, kept = algorithm.finish(carry, sent, own["algorithm"], info)
        with phase("transforms"):
            chain = inject(self.program.chain, settings.get("chain", {}))
            update = update._replace(staleness=info.staleness)
            update, by, held, within = chain.client_factored(update, state, own["chain"], key)
        loss = carry["loss"] / info.steps.clamp(min=1) if "loss" in carry else torch.zeros_like(update.weight)
        factors = {id(x): x for x in tree.leaves(by)}  # several tensors may have one
        sums = [
            (x.sum() if x.dim() else x).float()
            for x in [*tree.leaves(update.value), *factors.values(), *tree.leaves(kept)]
        ]
        finite = torch.isfinite(torch.stack([loss, update.weight, *sums]).sum())
        if within is not None:  # who is too long for the noise is left out, too, and told apart by its loss
            finite, loss = finite & within, loss.masked_fill(~within, TOO_LONG)
        new = {"algorithm": kept, "chain": held}
        out = {"value": update.value, "weight": update.weight, "by": by, "own": new, "loss": loss, "finite": finite}
        return {**out, **self._uploaded(update.message)} if update.message else out

    def _uploaded(self, message: Tree) -> Tree:
        """How long the message is; or the message itself, where a coder must make it to know that."""
        upload = self.program.upload
        if upload.fixed_bytes is not None:
            return {}
        return {"bytes": upload.length(message)} if upload.measurable else {"message": message}


def batch_of(decode: Decode, columns: Tree, rows: Tensor, n: Tensor, key: Tensor) -> Tree:
    """Gather and decode some rows of the data; the mask tells which are real."""
    batch = decode({**tree.rows(columns, rows), "key": key})
    mask = (torch.arange(rows.shape[-1], device=rows.device) < n).float()
    return {**batch, "mask": mask, "key": key}


def info_of(train: Train, cohort: Cohort) -> Info:
    """What the clients of a request know of their work, (C,) each, on the host."""
    stale = torch.zeros(len(cohort)) if train.staleness is None else train.staleness.float().cpu()
    return Info(cohort.id, cohort.examples, cohort.steps.float(), stale)


def step_keys(cohort: Cohort, key: Tensor, needed: bool) -> Tensor:
    """(C, S, 2) keys, one for each client and step, addressed by client id; zeros where nothing draws from them."""
    c, s = cohort.plan.shape[:2]
    if not needed:
        return torch.zeros((1, 1, 2), dtype=torch.int64).expand(c, s, 2)
    k0, k1 = rng.fold_name(key, "steps").tolist()
    ids, steps = cohort.id.cpu().numpy()[:, None], torch.arange(s).numpy()[None, :]
    a, b = rng.threefry(k0, k1, ids & 0xFFFFFFFF, steps + (ids >> 32 << 20))
    return torch.stack([torch.from_numpy(a), torch.from_numpy(b)], -1)


def client_keys(train: Train) -> Tensor:
    """(C, 2) keys for the transforms, addressed by client id; zeros where nothing draws from them."""
    if not train.program.chain.draws():
        return torch.zeros((len(train.ids), 2), dtype=torch.int64)
    k0, k1 = rng.fold_name(train.key, "transforms").tolist()
    ids = train.ids.cpu().numpy()
    a, b = rng.threefry(k0, k1, ids & 0xFFFFFFFF, ids >> 32 & 0xFFFFFFFF)
    return torch.stack([torch.from_numpy(a), torch.from_numpy(b)], -1)


def reduce_key(train: Train) -> Tensor:
    """What a reducer draws from."""
    return rng.fold_name(train.key, "reduce")


class ClientRows:
    """What the clients of one request keep: read before, written after.

    Where a client comes twice, both copies must start from the old state: all is written at the end.
    """

    def __init__(self, store: ClientStore, train: Train) -> None:
        self.store, self.mode = store, train.client_state
        self.repeated = len(set(train.ids.tolist())) < len(train.ids)
        self.waiting: list[tuple[Tensor, Tree]] = []

    def read(self, ids: Tensor) -> Tree:
        """Their rows, stacked."""
        return _NO_STATE if self.mode == "none" else self.store.read(ids)

    def read_one(self, id: Tensor) -> Tree:
        """One client's, without the axis."""
        rows = self.read(id)
        return tree.rows(rows, 0) if tree.leaves(rows) else rows

    def write(self, ids: Tensor, rows: Tree) -> None:
        """Keep them, now or at the end."""
        if self.mode == "update" and self.repeated:
            self.waiting.append((ids, rows))
        elif self.mode == "update":
            self.store.write(ids, rows)

    def finish(self) -> None:
        """All clients are done."""
        for ids, rows in self.waiting:
            self.store.write(ids, rows)


def lifted(program: Program, out: Tree, info: Info, key: Tensor) -> Any:
    """The partial aggregate of a stack of clients that have finished."""
    with phase("reduce"):
        return program.reducer.lift_scaled(Update(out["value"], out["weight"]), out["by"], info, key)


def alone(out: Tree) -> Tree:
    """One client's update as a stack of one."""
    return tree.map(lambda x: x[None], tree.select(out, SENT))  # type: ignore[no-any-return]


def upload_bytes(program: Program, out: Tree) -> Tensor | None:
    """What the updates of a stack of clients take on the wire, (C,) on the host; None where all take the same."""
    layout, silent = program.upload, program.chain.silent()
    if layout.fixed_bytes is not None and not silent:
        return None
    if layout.fixed_bytes is not None:
        sizes = torch.full(out["weight"].shape, layout.fixed_bytes)
    else:
        sizes = (out["bytes"] if layout.measurable else lengths(layout, _numbers_only(out))).cpu()
    return torch.where(out["weight"].cpu() == 0, EMPTY_BYTES, sizes) if silent else sizes


def _numbers_only(out: Tree) -> Tree:
    """Messages to be coded: NaN has no code, and who ends with it sends nothing that counts."""
    finite = out["finite"]
    if bool(finite.all()):
        return out["message"]  # type: ignore[no-any-return]
    good = finite.nonzero().flatten()
    return tree.map(lambda x: torch.zeros_like(x).index_copy(0, good, x[good]), out["message"])  # type: ignore[no-any-return]


def merged(program: Program, parts: list[Any]) -> Any:
    """Partial aggregates as one, in the order given."""
    with phase("reduce"):
        return program.reducer.merge_all(parts, program.like)
