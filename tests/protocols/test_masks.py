"""Masks against the plain cipher, and sums of them that cancel."""

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import ConfigError, ProtocolError
from atoll.protocols import masks

SEED = bytes(range(32))


def plain_residues(seed: bytes, size: int, bits: int) -> list[int]:
    """One call of the cipher, one number after the other."""
    width = next(w for w in (1, 2, 4, 8) if 8 * w >= bits)
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor().update(bytes(width * size))
    return [int.from_bytes(stream[i : i + width], "little") % (1 << bits) for i in range(0, len(stream), width)]


@pytest.mark.parametrize("bits", [2, 7, 8, 9, 16, 17, 31, 32, 33, 61, 62])
@pytest.mark.parametrize("size", [0, 1, 1000])
def test_a_mask_is_the_key_stream_of_aes_256(bits: int, size: int) -> None:
    assert masks.residues(masks.mask(SEED, size, bits), bits).tolist() == plain_residues(SEED, size, bits)


def test_a_mask_is_one_stream_over_many_blocks() -> None:
    size = 3 * masks._BLOCK // 4 + 5
    assert masks.residues(masks.mask(SEED, size, 32), 32).tolist() == plain_residues(SEED, size, 32)


def test_the_first_block_is_the_published_one_of_a_zero_key() -> None:
    """AES-256 of zeros under a key of zeros (NIST's AESAVS, VarKey/VarTxt of 256 bits)."""
    assert masks.mask(bytes(32), 16, 8).tobytes().hex() == "dc95c078a2408989ad48a21492842087"


@given(st.integers(2, 62), st.lists(st.binary(min_size=32, max_size=32), max_size=5), st.integers(1, 40))
def test_masks_that_are_added_and_subtracted_leave_the_vector(bits: int, seeds: list[bytes], size: int) -> None:
    vector = torch.from_numpy(np.random.default_rng(bits).integers(0, 1 << bits, size))
    words = masks.words(vector, bits, "here")
    for seed in seeds:
        masks.add_mask(words, seed)
    for seed in reversed(seeds):
        masks.subtract_mask(words, seed)
    assert masks.residues(words, bits).tolist() == vector.tolist()


def test_a_sum_of_masks_is_reduced_at_the_end() -> None:
    words, bits = masks.zeros(50, 20), 20
    for i in range(9):
        masks.add_mask(words, bytes([i]) * 32)
    total = np.sum([plain_residues(bytes([i]) * 32, 50, bits) for i in range(9)], axis=0) % (1 << bits)
    assert masks.residues(words, bits).tolist() == total.tolist()


def test_the_vector_itself_is_left_alone() -> None:
    vector = torch.arange(4)
    masks.add_mask(masks.words(vector, 62, "here"), SEED)
    assert vector.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("bits", [0, 1, 63, 64])
def test_bits_that_no_word_holds_are_refused(bits: int) -> None:
    with pytest.raises(ConfigError, match=r"bits: .* modulo 2\^2 to 2\^62"):
        masks.check_bits(bits)


@pytest.mark.parametrize("seed", [b"", bytes(4), bytes(31), bytes(33)])
def test_a_seed_of_another_length_is_refused(seed: bytes) -> None:
    with pytest.raises(ProtocolError, match="AES-256 takes 32"):
        masks.mask(seed, 3, 32)


@pytest.mark.parametrize(
    ("vector", "words"),
    [
        (torch.zeros(3), "torch.float32"),
        (torch.zeros(3, 1, dtype=torch.int64), r"\(3, 1\)"),
        (torch.tensor([0, -1]), "from -1 to 0"),
        (torch.tensor([256]), "from 256 to 256"),
    ],
)
def test_what_is_no_vector_of_residues_is_refused(vector: torch.Tensor, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        masks.words(vector, 8, "client 3")
