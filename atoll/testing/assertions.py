"""How a check says no: which property, the number found, the number wanted, and what usually causes it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from atoll import tree
from atoll.errors import ConformanceError
from atoll.tree import Tree


def need(good: bool | Tensor, what: str, found: object, wanted: object, cause: str) -> None:
    """Raise unless the property holds."""
    if not good:
        raise ConformanceError(f"{what}: found {shown(found)}, expected {shown(wanted)}. Usual cause: {cause}.")


def need_close(a: Tree, b: Tree, what: str, cause: str, tolerance: float = 1e-5) -> None:
    """Raise unless two trees agree, by the norm of the whole tree."""
    need(shapes(a) == shapes(b), what, difference_of_shapes(a, b), "trees of the same shape", cause)
    gap = distance(a, b)
    need(gap <= tolerance, what, f"a relative difference of {gap:.3g}", f"at most {tolerance:g}", cause)


def need_same(a: Tree, b: Tree, what: str, cause: str) -> None:
    """Raise unless two trees are equal bit for bit."""
    need(shapes(a) == shapes(b), what, difference_of_shapes(a, b), "trees of the same shape", cause)
    found = f"a relative difference of {distance(a, b):.3g}"
    need(tree.digest(a) == tree.digest(b), what, found, "the same bits", cause)


def need_shape(new: Tree, old: Tree, what: str, cause: str) -> None:
    """Raise unless a state kept its keys, shapes and types."""
    need(shapes(new) == shapes(old), what, difference_of_shapes(new, old), "the same keys, shapes and types", cause)


def distance(a: Tree, b: Tree) -> float:
    """|a - b| over the larger of |a| and |b|, each tree as one long vector; infinite where something is not finite."""
    if not tree.leaves(a):
        return 0.0
    a, b = (tree.map(lambda x: x.detach().cpu().double(), t) for t in (a, b))
    largest = max(float(tree.dot(a, a).sqrt()), float(tree.dot(b, b).sqrt()), 1e-30)
    gap = tree.sub(a, b)
    found = float(tree.dot(gap, gap).sqrt()) / largest
    return found if torch.isfinite(torch.tensor(found)) else float("inf")


def shapes(state: Any) -> dict[str, Any]:
    """Every leaf's path with its shape and type; what is no tensor shows its Python type."""
    if not isinstance(state, dict):
        return {"": _shape(state)}
    found: dict[str, Any] = {}
    for k, v in state.items():
        inner = shapes(v) if isinstance(v, dict) else None
        found |= {f"{k}/{p}": s for p, s in inner.items()} if inner is not None else {str(k): _shape(v)}
        if inner == {}:
            found[f"{k}/"] = "empty"
    return found


def difference_of_shapes(a: Any, b: Any) -> str:
    """The first few leaves in which two trees differ."""
    left, right = shapes(a), shapes(b)
    odd = [p for p in {**left, **right} if left.get(p) != right.get(p)]
    return "; ".join(f"{p}: {left.get(p, 'missing')} instead of {right.get(p, 'nothing')}" for p in odd[:3])


def shown(value: object) -> str:
    """A number with a few digits, anything else as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _shape(leaf: Any) -> Any:
    return (tuple(leaf.shape), str(leaf.dtype)) if isinstance(leaf, Tensor) else type(leaf).__name__
