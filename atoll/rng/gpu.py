"""Draws by one Triton kernel on a GPU: the words of `rng.bits`, and normal numbers made of them.

Triton comes with PyTorch on machines with a GPU. Where it is not there, both say None and torch draws.
"""

import importlib.util
from typing import Any

import torch
from torch import Tensor

DEVICES = {"cuda"}  # where kernels can be launched
_HAS_TRITON = importlib.util.find_spec("triton") is not None
_BLOCK = 1024  # words of one program


def bits(key: Tensor, n: int) -> Tensor | None:
    """`rng.bits(key, (n,))` in one kernel, for a key on a GPU; None where there is no kernel for it."""
    blocks = (n + 1) // 2
    if not _drawn_by_kernel(key, n):
        return None
    out = torch.empty(2 * blocks, dtype=torch.int64, device=key.device)
    if blocks:
        _kernels().threefry_words[(-(-blocks // _BLOCK),)](key.contiguous(), out, blocks, BLOCK=_BLOCK)
    return out[:n]


def normal(key: Tensor, n: int) -> Tensor | None:
    """`rng.normal_dp(key, (n,))` in one kernel, but for the last bits; None where there is no kernel for it."""
    half = (n + 1) // 2
    if not _drawn_by_kernel(key, 3 * half):
        return None
    out = torch.empty(n, device=key.device)
    if n:
        _kernels().normal_dp[(-(-half // _BLOCK),)](key.contiguous(), out, half, n, BLOCK=_BLOCK)
    return out


def fold(key: Tensor, data: int) -> Tensor | None:
    """`rng.fold(key, data)` in one kernel, also of a key that vmap batches; None where there is no kernel for it."""
    return _fold(key, data) if _drawn_by_kernel(key, 1) else None


@torch.library.custom_op("atoll::fold_key", mutates_args=())
def _fold(keys: Tensor, data: int) -> Tensor:
    """(..., 2) keys."""
    keys, out = keys.contiguous(), torch.empty_like(keys, memory_format=torch.contiguous_format)
    n = keys.numel() // 2
    if n:
        _kernels().fold_keys[(-(-n // _BLOCK),)](keys, out, data & 0xFFFFFFFF, data >> 32 & 0xFFFFFFFF, n, BLOCK=_BLOCK)
    return out


@_fold.register_fake
def _(keys: Tensor, data: int) -> Tensor:
    return torch.empty_like(keys, memory_format=torch.contiguous_format)


@_fold.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], keys: Tensor, data: int) -> tuple[Tensor, int]:
    return _fold(keys.movedim(in_dims[0], 0), data), 0


def _drawn_by_kernel(key: Tensor, n: int) -> bool:
    return _HAS_TRITON and key.device.type in DEVICES and n < 1 << 31


def _kernels() -> Any:
    from atoll.rng import triton

    return triton
