"""Several statistics in one update, each with its own bound, under one noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from atoll import tree
from atoll.core import Spec, Total, Transform, Update, l2_norm
from atoll.errors import ConfigError
from atoll.transforms import parameter_groups as groups
from atoll.transforms.clip import SAFE, TINY
from atoll.transforms.requirements import check_number, needs_real
from atoll.tree import Tree

_WHERE = "joint_clip.max_norms"


@dataclass(frozen=True)
class JointClip(Transform):
    """Groups of tensors, each clipped to its own bound and sent with its own share of the squared sensitivity.

    Group i goes out as sqrt(share_i) / max_norm_i times itself, so that the whole is no longer than 1, and the server
    multiplies back. With a noise multiplier z that is noise z_i = z / sqrt(share_i) on a group of max_norm_i, hence
    1 / z^2 = sum of 1 / z_i^2: the event of the noise counts all groups (the joint mechanism of Granqvist et al.,
    2024, appendix B.5). Names as in clip_layers; shares add up to 1.
    """

    keyed: ClassVar[bool] = False
    keeps_packing: ClassVar[bool] = True

    max_norms: dict[str, float]
    shares: dict[str, float]

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        for name, max_norm in self.max_norms.items():
            check_number(f"{_WHERE}.{name}", max_norm)
        for name, share in self.shares.items():
            check_number(f"joint_clip.shares.{name}", share)
        _check(self.max_norms, self.shares)
        needs_real(spec, "joint_clip")
        return self, replace(
            spec, l2=1.0, l1=None, unbounded_because="joint_clip has a scale of its own for every group"
        )

    def init(self, like: Tree) -> tuple[Tree, Tree]:
        groups.check_names(like, self.max_norms, _WHERE, rest=True)
        return {}, {}

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        return update._replace(value=groups.map_groups(update.value, self.max_norms, _WHERE, self._scaled_group)), own

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        return replace(total, value=groups.map_groups(total.value, self.max_norms, _WHERE, self._unscaled_group)), state

    def _scaled_group(self, name: str, group: Tree) -> Tree:
        norm = (l2_norm(group) + TINY) / SAFE
        factor = self.shares[name] ** 0.5 / norm.clamp(min=self.max_norms[name])
        return tree.map(lambda x: x.float() * factor, group)  # type: ignore[no-any-return]

    def _unscaled_group(self, name: str, group: Tree) -> Tree:
        return tree.scale(group, self.max_norms[name] / self.shares[name] ** 0.5)


def _check(max_norms: dict[str, float], shares: dict[str, float]) -> None:
    if not max_norms:
        raise ConfigError(f"{_WHERE}: is empty. Name groups of tensors, such as {{delta = 0.4, control = 0.1}}.")
    if max_norms.keys() != shares.keys():
        odd = sorted(max_norms.keys() ^ shares.keys())[0]
        has, lacks = ("max_norm", "share") if odd in max_norms else ("share", "max_norm")
        raise ConfigError(f"joint_clip.shares: {odd!r} has a {has} and no {lacks}. Give every group both.")
    whole = math.fsum(shares.values())
    if not math.isclose(whole, 1.0, rel_tol=0, abs_tol=1e-9):
        raise ConfigError(f"joint_clip.shares: must add up to 1 (got {whole:g}).")
