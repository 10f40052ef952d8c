"""What every compressor says of itself holds."""

import pytest
import torch

from atoll import rng, tree
from atoll.transforms.compress import (
    Compression,
    Compressor,
    Drive,
    Entropy,
    HalfPrecision,
    LowRank,
    MaskLayers,
    Qsgd,
    RandK,
    Sign,
    Ternary,
    TopK,
    UniformQuantise,
)
from tests.support.compressing import normal

COMPRESSORS: list[Compressor] = [
    *(TopK(0.1), TopK(0.1, positions="int64"), RandK(0.2), RandK(0.2, feedback=1.0), LowRank(1), Qsgd(4)),
    *(UniformQuantise(4), UniformQuantise(4, rotate=True), Drive(), Drive(scale="nearest"), HalfPrecision()),
    *(HalfPrecision("bfloat16"), Sign(), Sign("majority"), Ternary(0.1), MaskLayers(("w",))),
]
LIKE = {"w": normal(6, 9), "b": normal(7), "n": torch.tensor(2.0)}


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
def test_what_arrives_is_what_was_packed_and_unpacked(compressor: Compressor) -> None:
    own, key = compressor.own(LIKE), rng.key("client")
    packed, kept = compressor.pack(LIKE, own, key)
    sent = compressor.unpack(packed, LIKE, key)
    arrived, held = compressor.arrived(LIKE, own, key)
    torch.testing.assert_close(tree.leaves(arrived), tree.leaves(sent), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(tree.leaves(held), tree.leaves(kept), atol=0, rtol=0)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
def test_messages_have_the_same_length_where_that_is_said(compressor: Compressor) -> None:
    assert (Compression((compressor,)).layout(LIKE).fixed_bytes is not None) is compressor.fixed_length


@pytest.mark.parametrize("coder", ["entropy", "zstd"])
def test_a_coders_messages_have_no_fixed_length(coder: str) -> None:
    assert Compression((Qsgd(4), Entropy(coder))).layout(LIKE).fixed_bytes is None  # type: ignore[arg-type]
    assert not Entropy.fixed_length
