"""The largest entries of a stack of updates on a GPU, found and taken out by a few kernels.

Without Triton `selects` says no, and torch does it in many passes. Each operator is one client's; under vmap it is
called once, with a client axis in front.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
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
    held = min(_FEW, room) if rank * stretch < _FEW else 0  # no more are there, however many tie with the guess
    if held:
        kernels.place_of_held[one](full, guess, found, candidates, *chosen, n, k, room, held, BLOCK=_FEW, num_warps=32)
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


@contextmanager
def _beside(device: torch.device, wanted: bool) -> Iterator[None]:
    """What is launched in here runs beside what this stream is given next, until it is joined."""
    if not wanted or device.type != "cuda":
        yield
        return
    here, side = torch.cuda.current_stream(device), _side_stream(device)
    side.wait_stream(here)
    with torch.cuda.stream(side):
        yield


def _join(device: torch.device, wanted: bool) -> None:
    if wanted and device.type == "cuda":
        torch.cuda.current_stream(device).wait_stream(_side_stream(device))


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def split(
    xs: Sequence[Tensor], memories: Sequence[Tensor], part: float, ks: Sequence[int], arrives: Tensor, signs: bool
) -> list[Parts]:
    """Takes each y = x + part * memory, (..., n), apart: y - sent * arrives is held back, `arrives` one number each.

    Sent are the k largest entries; with `signs` their signs times their mean size. Small tensors leave most of a GPU
    idle, so they go beside the large ones.
    """
    arrives, device = arrives.contiguous(), arrives.device
    updates = [_Whole(x.contiguous(), memory.contiguous(), k) for x, memory, k in zip(xs, memories, ks, strict=True)]
    few, many = ([u for u in updates if (u.x.shape[-1] <= _FEW) is small] for small in (True, False))
    apart = bool(few and many)
    with _beside(device, apart):
        for u in few:
            _of_few(u.x, u.memory, part, u.chosen, (arrives, u.sent, u.held), signs)
    for u in many:
        full = _of_many(u.x, u.memory, part, u.chosen)
        n = full.shape[-1]
        _kernels().split_chosen[(-(-n // _BLOCK), full.numel() // n)](
            full, u.chosen.known, u.chosen.mean, arrives, u.sent, u.held, n, SIGNS=signs, BLOCK=_BLOCK, num_warps=8
        )
    _join(device, apart)
    return [Parts(u.chosen.places, u.chosen.mean, u.sent, u.held) for u in updates]


class _Whole:
    """An update and room for what becomes of it, all of which the stream that asks for it owns."""

    def __init__(self, x: Tensor, memory: Tensor, k: int) -> None:
        self.x, self.memory, self.chosen = x, memory, _room_for(x, k)
        self.sent, self.held = torch.empty_like(x), torch.empty_like(x)


@torch.library.custom_op("atoll::split_largest", mutates_args=())
def _split_largest(
    xs: list[Tensor], memories: list[Tensor], part: float, ks: list[int], arrives: Tensor, signs: bool
) -> list[Tensor]:
    """`split`, for vmap: the parts of each, one after the other."""
    return [x for parts in split(xs, memories, part, ks, arrives, signs) for x in parts if x is not None]


@_split_largest.register_fake
def _(
    xs: list[Tensor], memories: list[Tensor], part: float, ks: list[int], arrives: Tensor, signs: bool
) -> list[Tensor]:
    rooms = [x.new_empty((*x.shape[:-1], k), dtype=torch.int64) for x, k in zip(xs, ks, strict=True)]
    pairs = zip(xs, rooms, strict=True)
    return [
        y for x, room in pairs for y in (room, x.new_empty(x.shape[:-1]), x.new_empty(x.shape), x.new_empty(x.shape))
    ]


@_split_largest.register_vmap
def _(
    info: Any,
    in_dims: tuple[Any, ...],
    xs: list[Tensor],
    memories: list[Tensor],
    part: float,
    ks: list[int],
    arrives: Tensor,
    signs: bool,
) -> tuple[Any, Any]:
    xs, memories = in_front(info, in_dims[0], *xs), in_front(info, in_dims[1], *memories)
    (arrives,) = in_front(info, (in_dims[4],), arrives)
    return _split_largest(xs, memories, part, ks, arrives, signs), [0] * (len(Parts._fields) * len(xs))


def split_one(
    xs: list[Tensor], memories: list[Tensor], part: float, ks: list[int], arrives: Tensor, signs: bool
) -> list[Parts]:
    """`split` of one client's updates, (n,) each; under vmap all clients' in one call."""
    flat = _split_largest(xs, memories, part, ks, arrives, signs)
    step = len(Parts._fields)
    return [Parts(*flat[i : i + step]) for i in range(0, len(flat), step)]
