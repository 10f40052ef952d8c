"""Clipping: bounds on what one client can add to the aggregate."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from atoll import tree
from atoll.core import Positive, Scaling, Spec, Transform, Update, l1_norm, l2_norm
from atoll.errors import ConfigError
from atoll.transforms import parameter_groups
from atoll.transforms.requirements import check_number, needs_real
from atoll.tree import Tree

TINY = 1e-12  # a length below it may be read as 0
SAFE = 1 - 4e-6  # rounding must not make an update longer than its bound
Norm = Literal["l2", "l1"]


@dataclass(frozen=True)
class ClipL2(Scaling):
    """Scale an update down to length `max_norm` if it is longer: u * min(1, max_norm / |u|)."""

    keeps_zeros: ClassVar[bool] = True

    max_norm: Positive

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        check_number("clip_l2.max_norm", self.max_norm)
        needs_real(spec, "clip_l2")
        return self, _bounded(spec, self.max_norm, "l2")

    def scaled(self, update: Update, state: Tree) -> tuple[Update, Tree]:
        return update, _factors(update.value, self.max_norm)


@dataclass(frozen=True)
class ClipPerLayer(Scaling):
    """Each of the L tensors scaled down to max_norm / sqrt(L), so that the whole is no longer than `max_norm`.

    In L1 lengths add up, so that each gets max_norm / L. McMahan et al., Learning differentially private recurrent
    language models, 2018. For norms of one's own: clip_layers.
    """

    keeps_zeros: ClassVar[bool] = True

    max_norm: Positive
    norm: Norm = "l2"

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        check_number("clip_per_layer.max_norm", self.max_norm)
        needs_real(spec, "clip_per_layer")
        return self, _bounded(spec, self.max_norm, self.norm)

    def scaled(self, update: Update, state: Tree) -> tuple[Update, Tree]:
        tensors = max(1, len(tree.leaves(update.value)))  # none: nothing is shared
        per_tensor = self.max_norm / (tensors if self.norm == "l1" else tensors**0.5)
        return update, tree.map(lambda x: _factors({"x": x}, per_tensor, self.norm)["x"], update.value)


@dataclass(frozen=True)
class ClipLayers(Scaling):
    """Groups of tensors, each scaled down to its own length; the whole is at most sqrt(sum of squares) long.

    In L1 they add up. A name takes every tensor whose path has it in ("fc1" takes "delta/fc1.weight"), the
    longest name first; "rest" takes the others (McMahan et al., 2018). Several statistics in one update are bounded so,
    each to its share.
    """

    keeps_zeros: ClassVar[bool] = True

    max_norms: dict[str, float]
    norm: Norm = "l2"

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        for name, max_norm in self.max_norms.items():
            check_number(f"clip_layers.max_norms.{name}", max_norm)
        if not self.max_norms:
            raise ConfigError(
                "clip_layers.max_norms: is empty. Name groups of tensors, such as {fc1 = 0.5, rest = 0.1}."
            )
        needs_real(spec, "clip_layers")
        max_norms = self.max_norms.values()
        whole = sum(max_norms) if self.norm == "l1" else sum(b * b for b in max_norms) ** 0.5
        return self, _bounded(spec, whole, self.norm)

    def init(self, like: Tree) -> tuple[Tree, Tree]:
        parameter_groups.check_names(like, self.max_norms, "clip_layers.max_norms")
        return {}, {}

    def scaled(self, update: Update, state: Tree) -> tuple[Update, Tree]:
        def factors(name: str, group: Tree) -> Tree:
            return _factors(group, self.max_norms[name], self.norm)

        return update, parameter_groups.map_groups(update.value, self.max_norms, "clip_layers.max_norms", factors)


@dataclass(frozen=True)
class ClipL1(Scaling):
    """Scale an update down to `max_norm`, its entries added up without their signs: u * min(1, max_norm / |u|_1)."""

    keeps_zeros: ClassVar[bool] = True

    max_norm: Positive

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        check_number("clip_l1.max_norm", self.max_norm)
        needs_real(spec, "clip_l1")
        return self, _bounded(spec, self.max_norm, "l1")

    def scaled(self, update: Update, state: Tree) -> tuple[Update, Tree]:
        return update, _factors(update.value, self.max_norm, "l1")


def _factors(value: Tree, max_norm: float | Tensor, norm: Norm = "l2") -> Tree:
    """The clipping factor of every tensor, so that together they are no longer than the max_norm."""
    length = l1_norm(value) if norm == "l1" else l2_norm(value)
    factor = (max_norm * SAFE / (length + TINY)).clamp(max=1.0)
    return tree.map(lambda _: factor, value)  # type: ignore[no-any-return]


def _bounded(spec: Spec, max_norm: float, norm: Norm) -> Spec:
    if norm == "l2":
        return replace(spec, l2=_least(max_norm, spec.l2))
    l1 = _least(max_norm, spec.l1)
    return replace(spec, l1=l1, l2=_least(l1, spec.l2))  # |u|_2 is at most |u|_1


def _least(max_norm: float, before: float | None) -> float:
    return max_norm if before is None else min(max_norm, before)
