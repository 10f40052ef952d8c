"""The largest entries of a stack of updates on a GPU, found and taken out by a few kernels.

Without Triton `selects` says no, and torch does it in many passes. Each operator is one client's; under vmap it is
called once, with a client axis in front.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from atoll.transforms.compress.fused import in_front, usable

_BLOCK = 4096
_WORDS, _WORD_BLOCK = _BLOCK // 32, 512  # words of marks, of a block and of a program that reads them
_FEW, _SAMPLE = 1 << 15, 1 << 13  # sizes that one program holds, of a whole tensor or of a sample of it
_FEW_A_WARP = 1024
_MOST = 1 << 26


class Chosen(NamedTuple):
    """Which entries of each update are the largest."""

    places: Tensor  # (..., k), in increasing order
    known: Tensor  # (clients, 2): the least size of them, and the place of the last one of that size
    mean: Tensor  # (...) of their sizes


class Parts(NamedTuple):
    """An update (..., n) taken apart."""

    places: Tensor | None  # (..., k) of the largest entries, in increasing order; of equal ones the first; None: of all
    mean: Tensor | None  # (...) of their sizes
    sent: Tensor  # (..., n)
    held: Tensor  # (..., n): what was not sent, or did not arrive


def selects(x: Tensor) -> bool:
    """Are its largest entries found by a kernel?"""
    return usable(x, _MOST)


def _kernels() -> Any:
    from atoll.transforms.compress import selection_kernels

    return selection_kernels


def _room_for(x: Tensor, k: int) -> Chosen:
    """Tensors for the answer, of updates (..., n)."""
    places = torch.empty((*x.shape[:-1], k), dtype=torch.int64, device=x.device)
    known = torch.empty((x.numel() // x.shape[-1], 2), dtype=torch.int32, device=x.device)
    return Chosen(places, known, x.new_empty(x.shape[:-1]))


def _of_few(
    x: Tensor, memory: Tensor | None, part: float, chosen: Chosen, split: Sequence[Tensor], signs: bool
) -> None:
    """Fills in what is chosen, and with `split`, which are (arrives, sent, held), the last two of them."""
    n, k = x.shape[-1], chosen.places.shape[-1]
    width = max(32, 1 << (n - 1).bit_length())
    asked = {"ADD": memory is not None, "SPLIT": bool(split), "SIGNS": signs}
    _kernels().largest_of_few[(x.numel() // n,)](
        *(x, x if memory is None else memory, part, *chosen, *(split or (x, x, x)), n, k),
        **asked,
        BLOCK=width,
        num_warps=max(1, width // _FEW_A_WARP),
    )


def _of_many(x: Tensor, memory: Tensor | None, part: float, chosen: Chosen) -> Tensor:
    """Fills in what is chosen; x and the part of the memory, added."""
    n, k = x.shape[-1], chosen.places.shape[-1]
    clients, whole, add = x.numel() // n, chosen.known, memory is not None
    hits = _SAMPLE * k / n
    rank = min(_SAMPLE, math.ceil(hits + 4 * math.sqrt(hits) + 4))
    stretch, blocks = -(-n // _SAMPLE), -(-n // _BLOCK)
    room = min(n, 2 * rank * stretch + _BLOCK)  # about `rank` stretches of candidates are expected
    guess, found, counts = whole.new_empty(clients), whole.new_empty(clients), whole.new_empty((clients, blocks))
    marks = whole.new_empty((clients, blocks * _WORDS))
    candidates = whole.new_empty((clients, room))
    full = torch.empty_like(x) if add else x
    source = (x, x if memory is None else memory, part)
    kernels, one = _kernels(), (clients,)
    kernels.guess_least[one](*source, guess, n, rank, stretch, ADD=add, BLOCK=_SAMPLE, num_warps=8)
    kernels.mark_candidates[(blocks, clients)](
        *source, full, guess, marks, counts, n, blocks, ADD=add, BLOCK=_BLOCK, num_warps=8
    )
    kernels.number_candidates[one](counts, found, blocks, BLOCK=512)
    kernels.gather_candidates[(-(-blocks * _WORDS // _WORD_BLOCK), clients)](
        marks, counts, candidates, room, blocks, WORDS=_WORDS, BLOCK=_WORD_BLOCK, num_warps=4
    )
    held = _FEW if rank * stretch < _FEW else 0
    if held:
        kernels.place_of_held[one](full, guess, found, candidates, *chosen, n, k, room, BLOCK=held, num_warps=32)
    kernels.place_largest[one](full, found, candidates, *chosen, n, k, room, held, BLOCK=_BLOCK, num_warps=8)
    return full


@torch.library.custom_op("atoll::largest_places", mutates_args=())
def largest_places(x: Tensor, k: int) -> Tensor:
    """(..., n) to the places of the k largest sizes, in increasing order; of equal ones the first. k >= 1."""
    x = x.contiguous()
    chosen = _room_for(x, k)
    if x.shape[-1] <= _FEW:
        _of_few(x, None, 0.0, chosen, (), False)
    else:
        _of_many(x, None, 0.0, chosen)
    return chosen.places


@largest_places.register_fake
def _(x: Tensor, k: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], k), dtype=torch.int64)


@largest_places.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], x: Tensor, k: int) -> tuple[Tensor, int]:
    return largest_places(x.movedim(in_dims[0], 0), k), 0


def split(x: Tensor, memory: Tensor, part: float, k: int, arrives: Tensor, signs: bool) -> Parts:
    """Takes y = x + part * memory, (..., n), apart: y - sent * arrives is held back; `arrives` is a number of each.

    Sent are the k largest entries; with `signs` their signs times their mean size.
    """
    x, memory, arrives, n = x.contiguous(), memory.contiguous(), arrives.contiguous(), x.shape[-1]
    chosen, sent, held = _room_for(x, k), torch.empty_like(x), torch.empty_like(x)
    if n <= _FEW:
        _of_few(x, memory, part, chosen, (arrives, sent, held), signs)
    else:
        full = _of_many(x, memory, part, chosen)
        _kernels().split_chosen[(-(-n // _BLOCK), x.numel() // n)](
            full, chosen.known, chosen.mean, arrives, sent, held, n, SIGNS=signs, BLOCK=_BLOCK, num_warps=8
        )
    return Parts(chosen.places, chosen.mean, sent, held)


@torch.library.custom_op("atoll::split_largest", mutates_args=())
def split_largest(
    x: Tensor, memory: Tensor, part: float, k: int, arrives: Tensor, signs: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`split`, for vmap."""
    places, mean, sent, held = split(x, memory, part, k, arrives, signs)
    assert places is not None
    assert mean is not None
    return places, mean, sent, held


@split_largest.register_fake
def _(
    x: Tensor, memory: Tensor, part: float, k: int, arrives: Tensor, signs: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    places = x.new_empty((*x.shape[:-1], k), dtype=torch.int64)
    return places, x.new_empty(x.shape[:-1]), x.new_empty(x.shape), x.new_empty(x.shape)


@split_largest.register_vmap
def _(
    info: Any, in_dims: tuple[Any, ...], x: Tensor, memory: Tensor, part: float, k: int, arrives: Tensor, signs: bool
) -> tuple[Any, Any]:
    x, memory, arrives = in_front(info, (in_dims[0], in_dims[1], in_dims[4]), x, memory, arrives)
    return split_largest(x, memory, part, k, arrives, signs), (0, 0, 0, 0)
