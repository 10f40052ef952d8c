"""Trees of tensors with the way each travels, for tests and for the fuzzer of the wire format."""

from typing import Any

import torch
from hypothesis import strategies as st

from atoll.tree import Tree
from atoll.wire import Encoding, Layout
from atoll.wire.part import DTYPES, TORCH, value_bits

WHOLE = [name for name in DTYPES if value_bits(name)]
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


def random_bytes(count: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@st.composite
def raw(draw: Any) -> tuple[torch.Tensor, Encoding]:
    """Any bits at all, NaN with a payload among them; now and then a transposed view."""
    dtype, shape = TORCH[draw(st.sampled_from(DTYPES))], draw(SHAPES)
    noise = random_bytes(torch.Size(shape).numel() * dtype.itemsize, draw(st.integers(0, 99)))
    noise = noise % 2 if dtype == torch.bool else noise
    x = noise.view(dtype).reshape(shape)
    if draw(st.booleans()):  # not contiguous
        x = x.mT if x.dim() >= 2 else x[::2] if x.dim() else x
    return x, {"coder": draw(st.sampled_from(["plain", "zstd"]))}


@st.composite
def bits(draw: Any) -> tuple[torch.Tensor, Encoding]:
    dtype, shape = draw(st.sampled_from(WHOLE)), draw(SHAPES | st.tuples(st.integers(0, 300)))
    wide = draw(st.integers(1, min(32, value_bits(dtype))))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    low = draw(st.integers(1, 1 << wide))  # skewed, so that coders find something
    x = torch.randint(0, low, shape, generator=generator).to(TORCH[dtype])
    coders = ["plain", "zstd", "entropy"] if wide <= 12 else ["plain", "zstd"]
    return x, {"kind": "bits", "bits": wide, "coder": draw(st.sampled_from(coders))}


@st.composite
def positions(draw: Any) -> tuple[torch.Tensor, Encoding]:
    limit = draw(st.integers(0, 40) | st.integers(0, 5000) | st.just(1 << 48))
    chosen = draw(st.sets(st.integers(0, limit - 1), max_size=60)) if limit else set()
    dtype = torch.int32 if limit < 1 << 31 and draw(st.booleans()) else torch.int64
    x = torch.tensor(sorted(chosen), dtype=dtype)
    return x, {"kind": "sorted", "limit": limit, "coder": draw(st.sampled_from(["plain", "zstd"]))}


@st.composite
def payloads(draw: Any, plain: bool = False) -> tuple[Tree, Layout]:
    """A tree of up to five tensors in nested dicts, and a layout for it."""
    values: Tree = {}
    encodings: dict[str, Encoding] = {}
    for i in range(draw(st.integers(0, 5))):
        x, encoding = draw(raw() | bits() | positions())
        group, name = draw(st.sampled_from(["params", "buffers", "ü"])), f"layer.{i}"
        values.setdefault(group, {})[name] = x
        encodings[f"{group}/{name}"] = {**encoding, "coder": "plain"} if plain else encoding
    if draw(st.booleans()):
        values["nothing"] = {"inside": {}}
    return values, Layout.of(values, **encodings)
