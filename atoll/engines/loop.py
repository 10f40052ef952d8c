"""The reference: one client after the other, plain autograd, batches cut to their real examples. Takes any module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from atoll import tree
from atoll.core import Info, Job, Result
from atoll.engines.program import Decode, Program, Writes, alone, client_keys, lifted, merged, step_keys
from atoll.tree import Tree


@dataclass
class Loop:
    """Train the clients one by one: slow, simple, and what every other engine must agree with."""

    name: ClassVar[str] = "loop"

    columns: Tree
    decode: Decode
    device: torch.device
    keyed: bool = True
    seeded: bool = False  # the model draws numbers of its own: seed them for each client and step
    reason: str = field(default="chosen by name")

    def run(self, job: Job) -> Result:
        program = Program(job.algorithm, job.chain, self.decode)
        keys, own = step_keys(job.cohort, job.key, self.keyed or self.seeded), client_keys(job).to(self.device)
        parts, losses, finite, writes = [], [], [], Writes(job)
        with torch.no_grad():
            for c in range(len(job.cohort)):
                out = self._client(program, job, c, keys[c], own[c])
                losses.append(out["loss"])
                finite.append(out["finite"])
                if out["finite"]:
                    parts.append(lifted(job.reducer, alone(out)))
                    writes.keep(job.cohort.id[c : c + 1], tree.map(lambda x: x[None], out["memory"]))
        writes.finish()
        total = merged(job.reducer, parts)
        good = torch.stack(finite)
        return Result(total, torch.stack(losses), good, good.cpu().nonzero().flatten())

    def _client(self, program: Program, job: Job, c: int, keys: torch.Tensor, own: torch.Tensor) -> Tree:
        cohort = job.cohort
        sent = tree.rows(job.sent, c) if job.each else job.sent
        read = job.memory.read(cohort.id[c : c + 1])
        memory = tree.rows(read, 0) if tree.leaves(read) else read
        carry = program.start(job.settings, sent, memory)
        for s in range(int(cohort.steps[c])):
            n = int(cohort.count[c, s])
            some = max(1, n)  # a batch that drew nobody is a row that does not count
            rows = cohort.plan[c, s, :some].to(self.device)
            key = keys[s].to(self.device)
            if self.seeded:
                torch.manual_seed((int(keys[s, 0]) << 31) ^ int(keys[s, 1]))
            count = torch.tensor(n, device=self.device)
            carry = program.step(job.settings, carry, sent, memory, self.columns, rows, count, key)
        info = Info(
            cohort.id[c].to(self.device),
            cohort.examples[c].to(self.device),
            cohort.steps[c].to(self.device, torch.float32),
        )
        return program.finish(job.settings, carry, sent, memory, job.state, info, own)
