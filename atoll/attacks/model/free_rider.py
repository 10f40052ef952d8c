"""Clients that take the model and train nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from atoll.attacks.model.naive import client_noise
from atoll.core import AdversaryView, Attack
from atoll.tree import Tree

Unsigned = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class FreeRider(Attack):
    """Train nothing and send the model back, perhaps disguised (Fraboni et al., 2021). Knows its own update.

    u_t = [last change of the model, with `replay` (Lin et al., 2019)] + noise s t^-decay N(0, 1), where s is the
    deviation of the model's last change over its numbers and t counts rounds. noise = 0 is the plain free rider.
    """

    noise: Unsigned = 0.0
    decay: Unsigned = 1.0
    replay: bool = False

    def init(self, size: int) -> Tree:
        return {"last": torch.zeros(size), "rounds": torch.zeros(())}

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        base = seen.alike(state["last"].to(seen.own)) if self.replay else torch.zeros_like(seen.own)
        if not self.noise:
            return base.clone(), state
        scale = self.noise * state["last"].std(correction=0) * state["rounds"].clamp(min=1) ** -self.decay
        return base + scale.to(seen.own) * client_noise(key, seen), state

    def observe(self, aggregate: Tensor, state: Tree) -> Tree:
        return {"last": aggregate.to(state["last"].dtype), "rounds": state["rounds"] + 1}
