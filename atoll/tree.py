"""Trees: nested dicts of tensors, and the few operations every room above needs.

A state, a model, an update, a batch: all are trees, so they stack, travel, save and print with no registration.

>>> import torch
>>> add({"w": torch.ones(2)}, {"w": torch.ones(2)})
{'w': tensor([2., 2.])}
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

# A recursive alias cannot be narrowed leaf by leaf without casts everywhere; the functions below check instead.
Tree: TypeAlias = dict[str, Any]
_BLOCK = 1 << 20  # bytes that a processor's cache holds


def map(f: Callable[..., Tensor], *trees: Any) -> Any:
    """Apply `f` leaf by leaf. The trees must have the same keys."""
    first = trees[0]
    if not isinstance(first, dict):
        return f(*trees)
    if len(trees) == 1:
        return {k: map(f, v) if isinstance(v, dict) else f(v) for k, v in first.items()}
    for other in trees[1:]:
        if other.keys() != first.keys():
            raise ValueError(f"trees differ: {sorted(first)} against {sorted(other)}")
    return {k: map(f, *(t[k] for t in trees)) for k in first}


def leaves(tree: Any) -> list[Tensor]:
    """All tensors, depth first, in the order of the keys as they were put in."""
    if not isinstance(tree, dict):
        return [tree]
    found: list[Tensor] = []
    for v in tree.values():
        if isinstance(v, dict):
            found += leaves(v)
        else:
            found.append(v)
    return found


def paths(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every leaf with its path, e.g. ("params/fc.weight", ...)."""
    for k, v in tree.items():
        if isinstance(v, dict):
            yield from paths(v, f"{prefix}{k}/")
        else:
            yield f"{prefix}{k}", v


def zeros_like(tree: Tree) -> Tree:
    """A tree of zeros of the same shape."""
    return map(torch.zeros_like, tree)  # type: ignore[no-any-return]


def add(a: Tree, b: Tree) -> Tree:
    return map(torch.add, a, b)  # type: ignore[no-any-return]


def sub(a: Tree, b: Tree) -> Tree:
    return map(torch.sub, a, b)  # type: ignore[no-any-return]


def scale(tree: Tree, by: float | Tensor) -> Tree:
    """By * a; floating-point numbers keep their type, also a single one of 16 bits beside a `by` of 32."""
    return map(lambda x: (x * by).to(x.dtype) if x.is_floating_point() else x * by, tree)  # type: ignore[no-any-return]


def add_scaled(a: Tree, b: Tree, by: float | Tensor) -> Tree:
    """A + by * b, in one pass."""
    if isinstance(by, Tensor):
        return map(lambda x, y: torch.addcmul(x, y, by.to(x.dtype)), a, b)  # type: ignore[no-any-return]
    return map(lambda x, y: torch.add(x, y, alpha=by), a, b)  # type: ignore[no-any-return]


def dot(a: Tree, b: Tree) -> Tensor:
    """The inner product of two trees as one long vector, in float64."""
    products = [(x.double() * y.double()).sum() for x, y in zip(leaves(a), leaves(b), strict=True)]
    return torch.stack(products).sum() if products else torch.zeros((), dtype=torch.float64)


def norm(tree: Tree) -> Tensor:
    """The L2 norm of the tree as one long vector; summed in float64."""
    return dot(tree, tree).sqrt().float()


def weighted_sum(x: Tensor, w: Tensor) -> Tensor:
    """The sum of w_k x_k over the first axis of x.

    On a GPU never in TF32, which could make a client count for more than its bound.
    """
    w = w.to(x.dtype)
    if x.device.type == "cpu":
        return torch.tensordot(w, x, dims=1)  # type: ignore[no-any-return]
    rows = x.reshape(len(x), x[0].numel())
    return torch.mv(rows.T, w).reshape(x.shape[1:])  # of a matrix and a vector: always all bits


def cast_like(x: Tensor, like: Tensor) -> Tensor:
    """In the type of another tensor; to whole numbers by rounding, not by cutting off."""
    whole = x.is_floating_point() and not like.is_floating_point()
    return (x.round() if whole else x).to(like.dtype)


def where(condition: Tensor, a: Tree, b: Tree) -> Tree:
    """`a` where the (scalar) condition holds, else `b`."""
    return map(lambda x, y: torch.where(condition, x, y), a, b)  # type: ignore[no-any-return]


def rows(tree: Tree, index: Any) -> Tree:
    """Rows of the first axis of every leaf."""
    return map(lambda x: x[index], tree)  # type: ignore[no-any-return]


def stack(tree: Tree, n: int) -> Tree:
    """The same tree `n` times, along a new first axis (without copying)."""
    return map(lambda x: x.expand(n, *x.shape), tree)  # type: ignore[no-any-return]


def cat(trees: list[Tree]) -> Tree:
    """Join trees along the first axis of every leaf."""
    return trees[0] if len(trees) == 1 else map(lambda *xs: torch.cat(xs), *trees)


def to(tree: Tree, device: torch.device | str) -> Tree:
    """The tree on another device."""
    return map(lambda x: x.to(device), tree)  # type: ignore[no-any-return]


def device(tree: Tree) -> torch.device:
    """Where its tensors are; the CPU, if it has none."""
    return next((x.device for x in leaves(tree)), torch.device("cpu"))


def count(tree: Tree) -> int:
    """How many numbers the tree holds."""
    return sum(x.numel() for x in leaves(tree))


def nbytes(tree: Tree) -> int:
    """How many bytes the tree holds."""
    return sum(x.numel() * x.element_size() for x in leaves(tree))


def select(tree: Mapping[str, Any], names: tuple[str, ...]) -> Tree:
    """The entries with these names."""
    return {k: v for k, v in tree.items() if k in names}


def without(tree: Mapping[str, Any], names: tuple[str, ...]) -> Tree:
    """The entries with other names."""
    return {k: v for k, v in tree.items() if k not in names}


def digest(tree: Tree) -> str:
    """A short fingerprint of names, shapes and exact values.

    The values are summed as integers with random multipliers, so a GPU does it where they are, in any order.
    """
    return begin_digest(tree)()


def large_digest(tree: Tree) -> str:
    """The same for what memory has no room for twice, such as data: on the host, block by block."""
    h, multipliers = hashlib.blake2b(digest_size=20), _multipliers(_BLOCK // 8, torch.device("cpu"))
    for path, x in sorted(paths(tree)):
        h.update(f"{path}{tuple(x.shape)}{x.dtype}".encode())
        raw = x.detach().cpu().flatten().contiguous().view(torch.uint8)
        raw = raw.clone() if raw.storage_offset() % 8 else raw  # words begin at words
        blocks = [_words(raw[start : start + _BLOCK]) for start in range(0, len(raw), _BLOCK)]
        h.update(np.array([_product(words, multipliers[: len(words)]) for words in blocks], "<i8").tobytes())
    return h.hexdigest()


def begin_digest(tree: Tree) -> Callable[[], str]:
    """The same, asked for now and read later: whoever reads it waits for the device."""
    named = sorted(paths(tree))
    h = hashlib.blake2b(digest_size=12)
    for path, x in named:
        h.update(f"{path}{tuple(x.shape)}{x.dtype}".encode())
    sums = _sums([x for _, x in named])
    return lambda: h.hexdigest() + f"{sum(int(x) for x in sums) % (1 << 64):016x}"


def _sums(tensors: list[Tensor]) -> list[Any]:
    """One for each type of number, and the bytes of all."""
    sums: list[Any] = [sum(x.numel() * x.element_size() for x in tensors)]
    for kind in dict.fromkeys(x.dtype for x in tensors):
        raw = torch.cat([x.detach().flatten() for x in tensors if x.dtype == kind]).view(torch.uint8)
        words = _words(raw)
        sums.append(_product(words, _multipliers(len(words), words.device)))
    return sums


def _words(raw: Tensor) -> Tensor:
    """Bytes as integers of 64 bits; what is missing of the last one is 0."""
    return (torch.nn.functional.pad(raw, (0, -len(raw) % 8)) if len(raw) % 8 else raw).view(torch.int64)


def _product(a: Tensor, b: Tensor) -> Any:
    """The inner product modulo 2^64. On the host numpy takes a tenth of the time."""
    return np.dot(a.numpy(), b.numpy()) if a.device.type == "cpu" else (a * b).sum()


@lru_cache(maxsize=4)
def _multipliers(n: int, device: torch.device) -> Tensor:
    """Odd 64-bit numbers: SplitMix64 of 0..n-1 (Steele et al., 2014)."""
    x = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = (x ^ (x >> np.uint64(31))) | np.uint64(1)
    return torch.from_numpy(x.view(np.int64)).to(device)
