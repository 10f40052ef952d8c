"""Mimic: send again what one honest client sent, so that it counts too often."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll import rng
from atoll.core import AdversaryView, Attack, Knowledge
from atoll.tree import Tree


@dataclass(frozen=True)
class Mimic(Attack):
    """u = the honest update farthest along their main axis (Karimireddy et al., 2022). Knows everybody's updates.

    The axis z is learned from round to round: z <- t/(t+1) z + 1/(t+1) sum_i (u_i - m)(u_i - m)' z, normalised, with m
    the running mean; all attackers send argmax_i |z . u_i|. The paper keeps one client for ever; cohorts here may not
    hold it, so the choice is made in every round. Harmless to look at, since the update is honest.
    """

    @property
    def knows(self) -> Knowledge:
        return "everybody"

    def init(self, size: int) -> Tree:
        axis = rng.normal(rng.key("mimic"), (size,))
        return {"axis": axis / axis.norm().clamp(min=1e-30), "mean": torch.zeros(size), "rounds": torch.zeros(())}

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        benign, t = seen.benign, state["rounds"].to(seen.own)
        mean = (t * state["mean"].to(benign) + benign.mean(0)) / (t + 1)
        away, axis = benign - mean, state["axis"].to(benign)
        turned = (t * axis + away.T @ (away @ axis)) / (t + 1)
        axis = torch.where(turned.norm() > 0, turned / turned.norm().clamp(min=1e-30), axis)
        chosen = benign[(benign @ axis).abs().argmax()]
        return seen.alike(chosen), {"axis": axis, "mean": mean, "rounds": state["rounds"] + 1}
