"""What engines share that train each client alone: its inputs, and how the updates become one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Cohort, Columns, Info, Pending, Train, Trained
from atoll.engines.local import LocalEngine
from atoll.engines.program import (
    ClientRows,
    alone,
    client_keys,
    info_of,
    lifted,
    merged,
    reduce_key,
    step_keys,
    upload_bytes,
)
from atoll.phases import phase
from atoll.tree import Tree


@dataclass(frozen=True)
class ClientInputs:
    """A request with all that its clients take from it."""

    request: Train
    cohort: Cohort
    rows: ClientRows
    info: Info
    step_keys: Tensor  # (C, S, 2), on the host
    keys: Tensor  # (C, 2)

    def inputs(self, c: int) -> tuple[Tree, Tree, Tree]:
        """What client c is sent, the chain's state as it sees it, and what it kept."""
        sent, state = self.request.sent, self.request.state
        if self.request.per_client:
            sent, state = (tree.rows(x, c) if tree.leaves(x) else x for x in (sent, state))
        return sent, state, self.rows.read_one(self.cohort.id[c : c + 1])

    def info_of(self, c: int) -> Info:
        """What client c knows of its own work."""
        return Info(*(x[c] for x in self.info))


@dataclass
class OneByOne(LocalEngine):
    """Updates are merged as they come, in the order of the cohort, so that few are held."""

    @abstractmethod
    def clients(self, given: ClientInputs) -> Iterator[Tree]:
        """What each client ends with, in the order of the cohort."""

    def train(self, request: Train) -> Pending[Trained]:
        given, program, key = self._inputs(request), request.program, reduce_key(request)
        parts: list[Any] = []  # one at most
        losses, finite, uploads = [], [], []
        for c, out in enumerate(self.clients(given)):
            losses.append(out["loss"])
            finite.append(out["finite"])
            sent = tree.select(out, ("weight", "finite", "message", "bytes"))
            uploads.append(upload_bytes(program, tree.map(lambda x: x[None], sent)))
            if out["finite"]:
                part = lifted(program, alone(out), Info(*(x[c : c + 1] for x in given.info)), key)
                with phase("reduce"):
                    parts = [program.reducer.merge(parts[0], part) if parts else part]
                given.rows.write(given.cohort.id[c : c + 1], tree.map(lambda x: x[None], out["own"]))
        given.rows.finish()
        good = torch.stack(finite) if finite else torch.zeros(0, dtype=torch.bool)
        loss = torch.stack(losses) if losses else torch.zeros(0)
        sizes = [size for size in uploads if size is not None]
        columns = Columns(loss, good, good.cpu().nonzero().flatten(), torch.cat(sizes) if sizes else None)
        return Pending.done(Trained.settled(merged(program, parts), given.cohort.examples, columns))

    def _inputs(self, request: Train) -> ClientInputs:
        data, cohort = self.data, self.data.plan(request)
        info = Info(*(x.to(data.device) for x in info_of(request, cohort)))
        keys = step_keys(cohort, request.key, data.keyed or data.stochastic)
        return ClientInputs(
            request, cohort, ClientRows(self.store, request), info, keys, client_keys(request).to(data.device)
        )
