"""The reference: one client after the other, plain autograd, batches cut to their real examples. Takes any module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from atoll.engines.one_by_one import ClientInputs, OneByOne
from atoll.engines.program import ClientSteps
from atoll.tree import Tree


@dataclass
class Loop(OneByOne):
    """Train the clients one by one: slow, simple, and what every other engine must agree with."""

    name: ClassVar[str] = "loop"

    @property
    def stacks(self) -> bool:
        return False

    def choice(self) -> dict[str, Any]:
        return {"name": self.name}

    def clients(self, given: ClientInputs) -> Iterator[Tree]:
        steps = ClientSteps(given.request.program, self.data.decode)
        for c in range(len(given.cohort)):
            yield self._client(steps, given, c)

    @torch.no_grad()
    def _client(self, steps: ClientSteps, given: ClientInputs, c: int) -> Tree:
        device, settings, cohort, keys = self.data.device, given.request.settings, given.cohort, given.step_keys[c]
        sent, state, own = given.inputs(c)
        carry = steps.start(settings, sent, own)
        for s in range(int(cohort.steps[c])):
            n = int(cohort.count[c, s])
            some = max(1, n)  # a batch that drew nobody is a row that does not count
            batch, key = cohort.plan[c, s, :some].to(device), keys[s].to(device)
            if self.data.stochastic:
                torch.manual_seed((int(keys[s, 0]) << 31) ^ int(keys[s, 1]))
            count = torch.tensor(n, device=device)
            carry = steps.step(settings, carry, sent, own, self.data.columns, batch, count, key)
        return steps.finish(settings, carry, sent, own, state, given.info_of(c), given.keys[c])
