"""Keeping every update: for reducers that must see them all, and for rounds without a server."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atoll import tree
from atoll.core import Spec, Update


@dataclass(frozen=True)
class Stack:
    """Updates side by side. A monoid by joining."""

    updates: Update

    def merge(self, other: Stack) -> Stack:
        """Both stacks as one."""
        a, b = self.updates, other.updates
        value = tree.cat([a.value, b.value]) if tree.leaves(a.value) else a.value
        return Stack(Update(value, torch.cat([a.weight, b.weight])))


@dataclass(frozen=True)
class Keep:
    """Do not reduce at all: gossip mixes the stack with its own weights."""

    def spec(self) -> Spec:
        return Spec(additive=False)

    def lift(self, updates: Update) -> Stack:
        return Stack(updates)

    def finish(self, partial: Stack) -> Stack:
        return partial
