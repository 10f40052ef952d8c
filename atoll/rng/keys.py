"""Keys and the block function that all draws are made of."""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll.rng import gpu
from atoll.threefry import key_digest, key_words

MASK = 0xFFFFFFFF
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def key(*path: int | str) -> Tensor:
    """Derive a key from a path of names, e.g. `key(seed, "round", 3, "cohort")`."""
    return _key(tuple([p if isinstance(p, str) else int(p) for p in path]))  # a numpy 3 is the same 3


@lru_cache(maxsize=256)
def _key(path: tuple[int | str, ...]) -> Tensor:
    """A round asks for the same few keys again and again, and a device would wait for them."""
    return torch.from_numpy(key_words(path).astype(np.int64))


def fold_name(k: Tensor, *path: int | str) -> Tensor:
    """A new key from names and a key that may be looked at (not vmapped): thirty times cheaper than `fold`."""
    return key(*k.tolist(), *path)


def fold_name_each(k: Tensor, name: str, ids: Tensor) -> Tensor:
    """`fold_name(k, name, id)` of each of these ids, (C, 2): a twentieth of the time of asking one by one."""
    path = (*k.tolist(), name)
    words = [key_digest((*path, i)) for i in ids.tolist()]
    return torch.from_numpy(np.frombuffer(b"".join(words), ">u4").astype(np.int64).reshape(-1, 2))


def fold_each(k: Tensor, ids: Tensor) -> Tensor:
    """`fold(k, id)` of each of these ids, (C, 2)."""
    return fold(k, ids).T


def fold(k: Tensor, data: Tensor | int) -> Tensor:
    """A new key from `k` and a number of up to 63 bits."""
    if isinstance(data, int) and (folded := gpu.fold(k, data)) is not None:  # else a hundred small ones
        return folded
    d = torch.as_tensor(data, dtype=torch.int64, device=k.device)
    return torch.stack(threefry(k[0], k[1], d & MASK, (d >> 32) & MASK))


def fold_host(k: Tensor, data: int) -> Tensor:
    """`fold` in Python integers, for a key whose value may be looked at: 20 microseconds instead of 300.

    Never inside a program that an engine stacks or captures: what is looked at there would be taken for a constant.
    """
    if is_batched(k):
        return fold(k, data)
    a, b = k.tolist()
    folded = np.array(threefry(a, b, data & MASK, (data >> 32) & MASK), np.int64)  # a third of torch.tensor's time
    return torch.from_numpy(folded).to(k.device)


def is_batched(k: Tensor) -> bool:
    """Has this tensor an axis that vmap hides?"""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(k))


def threefry(k0: Any, k1: Any, x0: Any, x1: Any) -> tuple[Any, Any]:
    """The block function, on 32-bit words held in ints, numpy int64 arrays or int64 tensors alike."""
    ks = (k0, k1, k0 ^ k1 ^ 0x1BD11BDA)
    x0, x1 = (x0 + k0) & MASK, (x1 + k1) & MASK
    for i in range(5):
        for r in _ROTATIONS[i % 2]:
            x0 = (x0 + x1) & MASK
            x1 = (((x1 << r) & MASK) | (x1 >> (32 - r))) ^ x0
        x0 = (x0 + ks[(i + 1) % 3]) & MASK
        x1 = (x1 + ks[(i + 2) % 3] + (i + 1)) & MASK
    return x0, x1
