"""The reference: one client after the other, plain autograd, batches cut to their real examples. Takes any module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Cohort, Columns, Info, Pending, Train, Trained
from atoll.engines.local import LocalEngine
from atoll.engines.program import (
    ClientRows,
    ClientSteps,
    alone,
    client_keys,
    info_of,
    lifted,
    merged,
    reduce_key,
    step_keys,
)
from atoll.tree import Tree


@dataclass
class Loop(LocalEngine):
    """Train the clients one by one: slow, simple, and what every other engine must agree with."""

    name: ClassVar[str] = "loop"

    @property
    def stacks(self) -> bool:
        return False

    def choice(self) -> dict[str, Any]:
        return {"name": self.name}

    def train(self, request: Train) -> Pending[Trained]:
        data, cohort = self.data, self.data.plan(request)
        steps = ClientSteps(request.program, data.decode)
        keys = step_keys(cohort, request.key, data.keyed or data.stochastic)
        own, info, key = client_keys(request).to(data.device), info_of(request, cohort), reduce_key(request)
        parts, losses, finite, rows = [], [], [], ClientRows(self.store, request)
        with torch.no_grad():
            for c in range(len(cohort)):
                here = Info(*(x[c].to(data.device) for x in info))
                out = self._client(steps, request, cohort, c, rows, keys[c], own[c], here)
                losses.append(out["loss"])
                finite.append(out["finite"])
                if out["finite"]:
                    parts.append(lifted(request.program, alone(out), Info(*(x[None] for x in here)), key))
                    rows.write(cohort.id[c : c + 1], tree.map(lambda x: x[None], out["own"]))
        rows.finish()
        good = torch.stack(finite) if finite else torch.zeros(0, dtype=torch.bool)
        loss = torch.stack(losses) if losses else torch.zeros(0)
        columns = Columns(loss, good, good.cpu().nonzero().flatten())
        return Pending.done(Trained.settled(merged(request.program, parts), cohort.examples, columns))

    def _client(
        self,
        steps: ClientSteps,
        request: Train,
        cohort: Cohort,
        c: int,
        rows: ClientRows,
        keys: Tensor,
        own_key: Tensor,
        info: Info,
    ) -> Tree:
        device, settings = self.data.device, request.settings
        sent, state = own_inputs(request, c)
        own = rows.read_one(cohort.id[c : c + 1])
        carry = steps.start(settings, sent, own)
        for s in range(int(cohort.steps[c])):
            n = int(cohort.count[c, s])
            some = max(1, n)  # a batch that drew nobody is a row that does not count
            batch, key = cohort.plan[c, s, :some].to(device), keys[s].to(device)
            if self.data.stochastic:
                torch.manual_seed((int(keys[s, 0]) << 31) ^ int(keys[s, 1]))
            count = torch.tensor(n, device=device)
            carry = steps.step(settings, carry, sent, own, self.data.columns, batch, count, key)
        return steps.finish(settings, carry, sent, own, state, info, own_key)


def own_inputs(request: Train, c: int) -> tuple[Tree, Tree]:
    """What client c of a request is sent, and the chain's state as it sees it."""
    if not request.per_client:
        return request.sent, request.state
    sent, state = (tree.rows(x, c) if tree.leaves(x) else x for x in (request.sent, request.state))
    return sent, state
