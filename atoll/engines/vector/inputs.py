"""What a chunk's round is told."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Info
from atoll.tree import Tree

INFO = Info._fields


@dataclass(frozen=True)
class Inputs:
    """Everything a chunk's round needs to know."""

    settings: Tree
    sent: Tree
    own: Tree  # what clients keep
    state: Tree
    info: Tree
    transform_keys: Tensor  # (C, 2)
    plan: Tensor  # (C, S, B)
    count: Tensor  # (C, S)
    keys: Tensor  # (C, S, 2)

    def to(self, device: torch.device) -> Inputs:
        """On a device."""
        return self.map(lambda x: x.to(device))

    def map(self, f: Callable[[Tensor], Tensor]) -> Inputs:
        """Leaf by leaf."""
        parts: dict[str, Any] = {k: tree.map(f, v) for k, v in vars(self).items()}
        return Inputs(**parts)

    def first(self, n: int, per_client: bool, many: bool) -> Inputs:
        """Of the first n clients: what a step needs."""
        here = slice(0, n)
        return replace(
            self,
            settings=tree.rows(self.settings, here) if many else self.settings,
            sent=tree.rows(self.sent, here) if per_client else self.sent,
            own=tree.rows(self.own, here),
            plan=self.plan[here],
            count=self.count[here],
            keys=self.keys[here],
        )


class Plans:
    """What the host tells of a round (rows, counts, keys, sizes), in one buffer: one copy to the device."""

    def __init__(self, clients: int, steps: int, batch: int, device: torch.device) -> None:
        shapes = {"plan": (clients, steps, batch), "count": (clients, steps), "keys": (clients, steps, 2)}
        shapes |= {"transform_keys": (clients, 2)} | dict.fromkeys(INFO, (clients,))
        sizes = [math.prod(shape) for shape in shapes.values()]
        self.host = torch.zeros(sum(sizes), dtype=torch.int64, pin_memory=device.type == "cuda")
        self.device = torch.zeros_like(self.host, device=device)
        here, there = (
            {k: x.reshape(shape) for (k, shape), x in zip(shapes.items(), torch.split(raw, sizes), strict=True)}  # type: ignore[no-untyped-call]
            for raw in (self.host, self.device)
        )
        floats = INFO[1:]  # float32 in the lower half of a word
        self.here = {k: _floats(x) if k in floats else x for k, x in here.items()}
        there = {k: _floats(x) if k in floats else x for k, x in there.items()}
        self.there: dict[str, Any] = {k: there[k] for k in ("plan", "count", "keys", "transform_keys")}
        self.there["info"] = {k: there[k] for k in INFO}

    def fill(self, given: Inputs) -> None:
        """This round's."""
        s = given.plan.shape[1]
        for name, new in {**given.info, "transform_keys": given.transform_keys}.items():
            self.here[name].copy_(new)
        for name in ("plan", "count", "keys"):
            self.here[name][:, :s].copy_(getattr(given, name))
        self.device.copy_(self.host, non_blocking=True)


def _floats(words: Tensor) -> Tensor:
    return words.view(torch.float32)[::2]
