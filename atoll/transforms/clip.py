"""Clipping: bounds on what one client can add to the aggregate."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Positive, Scaling, Spec, Transform, Update
from atoll.errors import ConfigError
from atoll.transforms import parameter_groups
from atoll.transforms.requirements import check_number, needs_real
from atoll.tree import Tree

TINY = 1e-12  # a length below it may be read as 0
_BLOCK = 1024  # numbers; eight at a time, that is 128 additions, each wrong by 6e-8 at most
SAFE = 1 - 4e-6  # rounding must not make an update longer than its bound
Norm = Literal["l2", "l1"]


@dataclass(frozen=True)
class ClipL2(Scaling):
    """Scale an update down to length `bound` if it is longer: u * min(1, bound / |u|)."""

    bound: Positive

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        check_number("clip_l2.bound", self.bound)
        needs_real(spec, "clip_l2")
        return self, _bounded(spec, self.bound, "l2")

    def scaled(self, update: Update, state: Tree) -> tuple[Update, Tree]:
        return update, _factors(update.value, self.bound)


@dataclass(frozen=True)
class ClipPerLayer(Scaling):
    """Each of the L tensors scaled down to bound / sqrt(L), so that the whole is no longer than `bound`.

    In L1 lengths add up, so that each gets bound / L. McMahan et al., Learning differentially private recurrent
    language models, 2018. For bounds of one's own: clip_layers.
    """

    bound: Positive
    norm: Norm = "l2"

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        check_number("clip_per_layer.bound", self.bound)
        needs_real(spec, "clip_per_layer")
        return self, _bounded(spec, self.bound, self.norm)

    def scaled(self, update: Update, state: Tree) -> tuple[Update, Tree]:
        tensors = len(tree.leaves(update.value))
        per_tensor = self.bound / (tensors if self.norm == "l1" else tensors**0.5)
        return update, tree.map(lambda x: _factors({"x": x}, per_tensor, self.norm)["x"], update.value)


@dataclass(frozen=True)
class ClipLayers(Scaling):
    """Groups of tensors, each scaled down to its own length; the whole is at most sqrt(sum of squares) long.

    In L1 the bounds add up. A name takes every tensor whose path has it in ("fc1" takes "delta/fc1.weight"), the
    longest name first; "rest" takes the others (McMahan et al., 2018). Several statistics in one update are bounded so,
    each to its share.
    """

    bounds: dict[str, float]
    norm: Norm = "l2"

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        for name, bound in self.bounds.items():
            check_number(f"clip_layers.bounds.{name}", bound)
        if not self.bounds:
            raise ConfigError("clip_layers.bounds: is empty. Name groups of tensors, such as {fc1 = 0.5, rest = 0.1}.")
        needs_real(spec, "clip_layers")
        bounds = self.bounds.values()
        whole = sum(bounds) if self.norm == "l1" else sum(b * b for b in bounds) ** 0.5
        return self, _bounded(spec, whole, self.norm)

    def init(self, like: Tree) -> tuple[Tree, Tree]:
        parameter_groups.check_names(like, self.bounds, "clip_layers.bounds")
        return {}, {}

    def scaled(self, update: Update, state: Tree) -> tuple[Update, Tree]:
        def factors(name: str, group: Tree) -> Tree:
            return _factors(group, self.bounds[name], self.norm)

        return update, parameter_groups.map_groups(update.value, self.bounds, "clip_layers.bounds", factors)


@dataclass(frozen=True)
class ClipL1(Scaling):
    """Scale an update down until its entries, without their signs, add up to `bound`: u * min(1, bound / |u|_1)."""

    bound: Positive

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        check_number("clip_l1.bound", self.bound)
        needs_real(spec, "clip_l1")
        return self, _bounded(spec, self.bound, "l1")

    def scaled(self, update: Update, state: Tree) -> tuple[Update, Tree]:
        return update, _factors(update.value, self.bound, "l1")


def l1_norm(value: Tree) -> Tensor:
    """The entries of the tree without their signs, added up in float64."""
    sums = [x.double().abs().sum() for x in tree.leaves(value)]
    return torch.stack(sums).sum().float() if sums else torch.zeros(())


def l2_norm(value: Tree) -> Tensor:
    """The L2 norm, from blocks whose float32 sums are right to 2e-6; nothing as large as the tree is written.

    >>> float(l2_norm({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])}))
    5.0
    """
    norms = [norm for x in tree.leaves(value) for norm in _block_norms(x.float().reshape(-1))]
    return torch.linalg.vector_norm(torch.cat(norms), dtype=torch.float64).float() if norms else torch.zeros(())


def _block_norms(x: Tensor) -> list[Tensor]:
    rest = x.numel() % _BLOCK
    whole, tail = x[: x.numel() - rest].reshape(-1, _BLOCK), x[x.numel() - rest :].reshape(1, -1)
    return [torch.linalg.vector_norm(part, dim=1) for part in (whole, tail) if part.numel()]


def _factors(value: Tree, bound: float | Tensor, norm: Norm = "l2") -> Tree:
    """The clipping factor of every tensor, so that together they are no longer than the bound."""
    length = l1_norm(value) if norm == "l1" else l2_norm(value)
    factor = (bound * SAFE / (length + TINY)).clamp(max=1.0)
    return tree.map(lambda _: factor, value)  # type: ignore[no-any-return]


def _bounded(spec: Spec, bound: float, norm: Norm) -> Spec:
    if norm == "l2":
        return replace(spec, l2=_least(bound, spec.l2))
    l1 = _least(bound, spec.l1)
    return replace(spec, l1=l1, l2=_least(l1, spec.l2))  # |u|_2 is at most |u|_1


def _least(bound: float, before: float | None) -> float:
    return bound if before is None else min(bound, before)
