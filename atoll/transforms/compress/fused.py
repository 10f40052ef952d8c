"""What compressors do to a stack of updates on a GPU, in a kernel or a few.

Without Triton, which comes with PyTorch on machines with a GPU, `usable` says no and torch does it in many passes. Each
operator is one client's; under vmap it is called once, with a client axis in front.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import torch
from torch import Tensor

DEVICES = {"cuda"}  # where kernels can be launched
_FOUND = importlib.util.find_spec("triton") is not None
_BLOCK = 4096
_MOST = 1 << 30
_THIN = 16  # rank up to which a product is a thin one
_TALL = 16384  # numbers of a factor that one program holds
_THIN_TILES = {"WIDE": 16, "BM": 64, "BK": 64}


def usable(x: Tensor, most: int = _MOST) -> bool:
    """Can tensors like this one go through a kernel?"""
    return _FOUND and x.device.type in DEVICES and x.dtype == torch.float32 and 0 < x.numel() < most


def draws(key: Tensor) -> bool:
    """Can a kernel draw from this key?"""
    return _FOUND and key.device.type in DEVICES


def _kernels() -> Any:
    from atoll.transforms.compress import fused_kernels

    return fused_kernels


def in_front(info: Any, in_dims: tuple[Any, ...], *tensors: Tensor) -> list[Tensor]:
    """The client axis of each first; made where there is none."""
    pairs = zip(tensors, in_dims, strict=False)
    return [x.expand(info.batch_size, *x.shape) if d is None else x.movedim(d, 0) for x, d in pairs]


@torch.library.custom_op("atoll::quantise", mutates_args=())
def quantise(
    x: Tensor, key: Tensor, low: Tensor, step: Tensor, unit: Tensor, most: int, signed: bool, decode: bool
) -> Tensor:
    """(..., n) to levels up to `most`, rounded up or down at random, or with `decode` to what they stand for."""
    n, x = x.shape[-1], x.contiguous()
    out = torch.empty_like(x, dtype=x.dtype if decode else torch.int32)
    numbers = [part.contiguous() for part in (key, low, step, unit)]
    grid = (-(-n // _BLOCK), x.numel() // n)
    _kernels().quantise[grid](x, *numbers, out, n, MOST=most, SIGNED=signed, DECODE=decode, BLOCK=_BLOCK, num_warps=8)
    return out


@quantise.register_fake
def _(x: Tensor, key: Tensor, low: Tensor, step: Tensor, unit: Tensor, most: int, signed: bool, decode: bool) -> Tensor:
    return x.new_empty(x.shape, dtype=x.dtype if decode else torch.int32)


@quantise.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    return quantise(*in_front(info, in_dims, *args[:5]), *args[5:]), 0


def _factors(block: int, device: torch.device) -> dict[str, Any]:
    """A block as a matrix: of 16 rows and columns at least, where smaller blocks stand side by side."""
    right = min(block, 1 << max(4, (block.bit_length() - 1) // 2))
    left = block // right
    part = _kernels().tl.bfloat16 if device.type == "cuda" else _kernels().tl.float32  # an interpreter has only these
    sizes = {"A": max(16, left), "B": max(16, right), "LEFT": left, "RIGHT": right}
    return {**sizes, "SCALE": 1.0 / math.sqrt(block), "PART": part}


@torch.library.custom_op("atoll::rotate", mutates_args=())
def rotate(x: Tensor, key: Tensor, block: int, size: int, back: bool) -> Tensor:
    """(..., n) to (..., size): signs at random, then Hadamard's matrix, in blocks; `back` undoes it."""
    n, x = x.shape[-1], x.contiguous()
    out = x.new_empty((*x.shape[:-1], size))
    grid = (-(-max(n, size) // block), x.numel() // n)
    _kernels().rotate[grid](x, key.contiguous(), out, n, size, BACK=back, **_factors(block, x.device))
    return out


@rotate.register_fake
def _(x: Tensor, key: Tensor, block: int, size: int, back: bool) -> Tensor:
    return x.new_empty((*x.shape[:-1], size))


@rotate.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    return rotate(*in_front(info, in_dims, *args[:2]), *args[2:]), 0


@torch.library.custom_op("atoll::drive", mutates_args=())
def drive(x: Tensor, key: Tensor, block: int, unbiased: bool) -> Tensor:
    """(..., n) to what arrives of it: rotated, one bit a coordinate, rotated back."""
    n, x = x.shape[-1], x.contiguous()
    out = torch.empty_like(x)
    _kernels().drive[(-(-n // block), x.numel() // n)](
        x, key.contiguous(), out, n, UNBIASED=unbiased, **_factors(block, x.device)
    )
    return out


@drive.register_fake
def _(x: Tensor, key: Tensor, block: int, unbiased: bool) -> Tensor:
    return x.new_empty(x.shape)


@drive.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    return drive(*in_front(info, in_dims, *args[:2]), *args[2:]), 0


def thin(matrix: Tensor, rank: int) -> bool:
    """Are its products with factors of this rank made by a kernel?"""
    return rank <= _THIN and rank * matrix.shape[0] <= _TALL and usable(matrix)


@torch.library.custom_op("atoll::thin_product", mutates_args=())
def thin_product(matrix: Tensor, factor: Tensor, transposed: bool) -> Tensor:
    """(..., rows, columns) times (..., columns, rank); `transposed`: times (..., rows, rank), by columns."""
    matrix, (rows, columns), rank = matrix.contiguous(), matrix.shape[-2:], factor.shape[-1]
    by_row, by_column = columns, 1
    if transposed:
        rows, columns, by_row, by_column = columns, rows, 1, columns
    out = matrix.new_empty((*matrix.shape[:-2], rows, rank))
    grid = (-(-rows // 64), matrix.numel() // (rows * columns))
    _kernels().thin_product[grid](
        *(matrix, matrix, 0.0, factor.contiguous(), out, out, rows, columns, by_row, by_column),
        **(_THIN_TILES | {"RANK": rank, "ADDS": False}),
    )
    return out


@thin_product.register_fake
def _(matrix: Tensor, factor: Tensor, transposed: bool) -> Tensor:
    rows = matrix.shape[-1 if transposed else -2]
    return matrix.new_empty((*matrix.shape[:-2], rows, factor.shape[-1]))


@thin_product.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], matrix: Tensor, factor: Tensor, transposed: bool) -> tuple[Tensor, int]:
    return thin_product(*in_front(info, in_dims, matrix, factor), transposed), 0


@torch.library.custom_op("atoll::thin_product_of_sum", mutates_args=())
def thin_product_of_sum(matrix: Tensor, memory: Tensor, part: float, factor: Tensor) -> tuple[Tensor, Tensor]:
    """matrix + part * memory, (..., rows, columns), times (..., columns, rank); and the sum."""
    matrix, memory, factor = matrix.contiguous(), memory.contiguous(), factor.contiguous()
    (rows, columns), rank = matrix.shape[-2:], factor.shape[-1]
    out, full = matrix.new_empty((*matrix.shape[:-1], rank)), torch.empty_like(matrix)
    grid = (-(-rows // 64), matrix.numel() // (rows * columns))
    _kernels().thin_product[grid](
        *(matrix, memory, part, factor, out, full, rows, columns, columns, 1),
        **(_THIN_TILES | {"RANK": rank, "ADDS": True}),
    )
    return out, full


@thin_product_of_sum.register_fake
def _(matrix: Tensor, memory: Tensor, part: float, factor: Tensor) -> tuple[Tensor, Tensor]:
    return matrix.new_empty((*matrix.shape[:-1], factor.shape[-1])), matrix.new_empty(matrix.shape)


@thin_product_of_sum.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], matrix: Tensor, memory: Tensor, part: float, factor: Tensor) -> Any:
    dims = (in_dims[0], in_dims[1], in_dims[3])
    matrix, memory, factor = in_front(info, dims, matrix, memory, factor)
    return thin_product_of_sum(matrix, memory, part, factor), (0, 0)


@torch.library.custom_op("atoll::thin_outer", mutates_args=())
def thin_outer(left: Tensor, right: Tensor) -> Tensor:
    """(..., rows, rank) times the transpose of (..., columns, rank)."""
    (rows, rank), columns = left.shape[-2:], right.shape[-2]
    out = left.new_empty((*left.shape[:-1], columns))
    grid = (-(-columns // 128), -(-rows // 32), left.numel() // (rows * rank))
    _kernels().thin_outer[grid](
        *(left.contiguous(), right.contiguous(), out, out, left, out, rows, columns),
        **{"RANK": rank, "RESTS": False, "BM": 32, "BN": 128},
    )
    return out


@thin_outer.register_fake
def _(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty((*left.shape[:-1], right.shape[-2]))


@thin_outer.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], left: Tensor, right: Tensor) -> tuple[Tensor, int]:
    return thin_outer(*in_front(info, in_dims, left, right)), 0


@torch.library.custom_op("atoll::thin_outer_and_rest", mutates_args=())
def thin_outer_and_rest(left: Tensor, right: Tensor, full: Tensor, arrives: Tensor) -> tuple[Tensor, Tensor]:
    """`thin_outer`, and what is left of `full` (..., rows, columns) without it, where it arrives: 1 or 0."""
    (rows, rank), columns = left.shape[-2:], right.shape[-2]
    out, rest = full.new_empty(full.shape), full.new_empty(full.shape)
    grid = (-(-columns // 128), -(-rows // 32), left.numel() // (rows * rank))
    _kernels().thin_outer[grid](
        *(left.contiguous(), right.contiguous(), out, full.contiguous(), arrives.contiguous(), rest, rows, columns),
        **{"RANK": rank, "RESTS": True, "BM": 32, "BN": 128},
    )
    return out, rest


@thin_outer_and_rest.register_fake
def _(left: Tensor, right: Tensor, full: Tensor, arrives: Tensor) -> tuple[Tensor, Tensor]:
    return full.new_empty(full.shape), full.new_empty(full.shape)


@thin_outer_and_rest.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *tensors: Tensor) -> Any:
    return thin_outer_and_rest(*in_front(info, in_dims, *tensors)), (0, 0)


@torch.library.custom_op("atoll::orthonormal", mutates_args=())
def orthonormal(matrix: Tensor) -> Tensor:
    """(..., rows, rank): its columns by Gram and Schmidt."""
    matrix, (rows, rank) = matrix.contiguous(), matrix.shape[-2:]
    out = torch.empty_like(matrix)
    block, wide = max(16, 1 << (rows - 1).bit_length()), 1 << (rank - 1).bit_length()
    _kernels().orthonormal[(matrix.numel() // (rows * rank),)](
        matrix, out, rows, RANK=rank, WIDE=wide, BLOCK=block, num_warps=4 if block < 1024 else 8
    )
    return out


@orthonormal.register_fake
def _(matrix: Tensor) -> Tensor:
    return torch.empty_like(matrix, memory_format=torch.contiguous_format)


@orthonormal.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], matrix: Tensor) -> tuple[Tensor, int]:
    return orthonormal(matrix.movedim(in_dims[0], 0)), 0


@torch.library.custom_op("atoll::sketch_table", mutates_args=())
def sketch_table(x: Tensor, offsets: Tensor, columns: int, key: list[int]) -> Tensor:
    """(..., n) to (..., rows, columns): offsets (rows, blocks) say how far each block is turned; one key for all."""
    n, x, (rows, blocks) = x.shape[-1], x.contiguous(), offsets.shape
    clients = x.numel() // n
    out = x.new_empty((*x.shape[:-1], rows, columns))
    grid = (-(-columns // 512), rows, -(-clients // 4))
    _kernels().sketch_table[grid](
        x, *key, offsets.contiguous(), out, n, blocks, columns, clients, ROWS=rows, CLIENTS=4, BLOCK=512
    )
    return out


@sketch_table.register_fake
def _(x: Tensor, offsets: Tensor, columns: int, key: list[int]) -> Tensor:
    return x.new_empty((*x.shape[:-1], offsets.shape[0], columns))


@sketch_table.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], x: Tensor, *common: Any) -> tuple[Tensor, int]:
    return sketch_table(x.movedim(in_dims[0], 0), *common), 0


@torch.library.custom_op("atoll::sketch_read", mutates_args=())
def sketch_read(table: Tensor, offsets: Tensor, size: int, key: list[int]) -> Tensor:
    """(rows, columns) to (rows, size): what each row says of every entry. Not vmapped: the server's."""
    rows, columns = table.shape
    out = table.new_empty((rows, size))
    _kernels().sketch_read[(-(-size // 1024), rows)](
        table.contiguous(), *key, offsets.contiguous(), out, size, offsets.shape[1], columns, BLOCK=1024
    )
    return out


@sketch_read.register_fake
def _(table: Tensor, offsets: Tensor, size: int, key: list[int]) -> Tensor:
    return table.new_empty((table.shape[0], size))


@torch.library.custom_op("atoll::random_places", mutates_args=())
def random_places(key: Tensor, n: int, k: int) -> Tensor:
    """(..., 2) to (..., k) places below n: `sparse.random_places`."""
    places = key.new_empty((*key.shape[:-1], k))
    _kernels().random_places[(-(-k // 512), key.numel() // 2)](key.contiguous(), places, n, k, BLOCK=512)
    return places


@random_places.register_fake
def _(key: Tensor, n: int, k: int) -> Tensor:
    return key.new_empty((*key.shape[:-1], k))


@random_places.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], key: Tensor, n: int, k: int) -> tuple[Tensor, int]:
    return random_places(key.movedim(in_dims[0], 0), n, k), 0
