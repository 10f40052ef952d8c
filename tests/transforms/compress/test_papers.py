"""Each compressor against its paper, written down again in NumPy; only the random words are shared."""

import numpy as np
import pytest
import torch

from atoll import rng
from atoll.transforms.compress import Drive, HalfPrecision, LowRank, MaskLayers, Qsgd, RandK, Sign, Ternary, TopK
from atoll.transforms.compress import UniformQuantise as Uniform
from atoll.transforms.compress.low_rank import orthonormal
from tests.support.compressing import KEY, Array, Client, close, first_key, normal, uniforms, words

SIZES = [2, 3, 37, 64, 500]


def hadamard(n: int) -> Array:
    """Sylvester's construction, orthonormal."""
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(n)


def rotation(n: int, key: torch.Tensor) -> Array:
    """Of n numbers, padded: H D, as a matrix."""
    padded = 1 << (n - 1).bit_length()
    signs = 1.0 - 2.0 * (words(key, padded) & 1)
    return (hadamard(padded) * signs)[:, :n]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("levels", [1, 4, 255])
def test_qsgd_rounds_shares_of_the_length_up_with_the_probability_of_what_is_left(n: int, levels: int) -> None:
    x = normal(n)
    v = x.numpy().astype(np.float64)
    share = np.abs(v) / np.linalg.norm(v) * levels
    low = np.floor(share)
    level = low + (uniforms(first_key(), n) >= 1 - (share - low))  # Alistarh et al., 3.1
    close(Client({"w": x}, Qsgd(levels)).sends({"w": x})["w"], np.linalg.norm(v) * np.sign(v) * level / levels)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("bits", [1, 4, 8])
def test_uniform_quantisation_rounds_to_a_grid_between_the_least_and_the_largest(n: int, bits: int) -> None:
    x = normal(n)
    close(Client({"w": x}, Uniform(bits)).sends({"w": x})["w"], on_grid(x.numpy(), bits, first_key()))


def on_grid(x: Array, bits: int, key: torch.Tensor) -> Array:
    """Stochastic k-level quantisation (Suresh et al., 2.2)."""
    grid = np.linspace(x.min(), x.max(), 1 << bits, dtype=np.float64)
    below = np.clip(np.searchsorted(grid, x, side="right") - 1, 0, len(grid) - 2)
    share = (x - grid[below]) / (grid[below + 1] - grid[below])
    up = uniforms(key, len(x)) >= 1 - share
    return np.where(up, grid[below + 1], grid[below])  # type: ignore[no-any-return]


@pytest.mark.parametrize("n", [2, 37, 64])
def test_rotated_quantisation_rounds_what_hadamards_matrix_gives(n: int) -> None:
    x, key = normal(n), first_key()
    matrix = rotation(n, rng.fold(key, 0))
    wanted = matrix.T @ on_grid((matrix @ x.numpy()).astype(np.float32), 4, key)
    close(Client({"w": x}, Uniform(4, rotate=True)).sends({"w": x})["w"], wanted, within=2e-6)


@pytest.mark.parametrize("n", [2, 37, 64, 500])
@pytest.mark.parametrize("scale", ["unbiased", "nearest"])
def test_drive_sends_signs_of_the_rotated_update_and_one_scale(n: int, scale: str) -> None:
    x = normal(n)
    v, matrix = x.numpy().astype(np.float64), rotation(n, first_key())
    y = matrix @ v
    norm1 = np.abs(y).sum()
    by = v @ v / norm1 if scale == "unbiased" else norm1 / len(y)  # Vargaftik et al., Theorems 2 and 1
    close(Client({"w": x}, Drive(scale)).sends({"w": x})["w"], matrix.T @ (by * np.sign(y)))  # type: ignore[arg-type]


def test_a_long_tensor_is_rotated_in_blocks_with_a_scale_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.transforms.compress.rotation._BLOCK", 64)
    x = normal(100)
    signs = 1.0 - 2.0 * (words(first_key(), 128) & 1)
    blocks = (np.pad(x.numpy().astype(np.float64), (0, 28)) * signs).reshape(2, 64) @ hadamard(64)
    by = (blocks**2).sum(1) / np.abs(blocks).sum(1)
    back = ((np.sign(blocks) * by[:, None]) @ hadamard(64)).flatten() * signs
    close(Client({"w": x}, Drive()).sends({"w": x})["w"], back[:100])


@pytest.mark.parametrize(("size", "by"), [("mean", None), ("majority", 0.25)])
def test_signs_come_with_the_mean_size_or_with_the_step(size: str, by: float | None) -> None:
    x = normal(5, 7)
    wanted = np.sign(x.numpy()) * (np.abs(x.numpy()).mean() if by is None else by)
    close(Client({"w": x}, Sign(size, step=0.25)).sends({"w": x})["w"], wanted)  # type: ignore[arg-type]


def ternary(x: Array, share: float) -> Array:
    """STC (Sattler et al., Algorithm 1)."""
    k = max(1, int(np.ceil(share * x.size)))
    chosen = np.argsort(-np.abs(x))[:k]
    out = np.zeros_like(x)
    out[chosen] = np.abs(x[chosen]).mean() * np.sign(x[chosen])
    return out


@pytest.mark.parametrize("share", [0.01, 0.2, 1.0])
def test_ternary_sends_the_largest_as_signs_with_their_mean_size(share: float) -> None:
    x = normal(150)
    close(Client({"w": x}, Ternary(share, both_ways=False)).sends({"w": x})["w"], ternary(x.numpy(), share))


@pytest.mark.parametrize("feedback", [1.0, 0.5, 0.0])
def test_top_k_adds_its_share_of_what_was_held_back(feedback: float) -> None:
    client, held = Client({"w": normal(40)}, TopK(0.1, feedback)), np.zeros(40)
    for turn in range(5):
        x = normal(40, seed=turn)
        full = x.numpy() + feedback * held
        chosen = np.argsort(-np.abs(full))[:4]
        sent = np.zeros(40)
        sent[chosen] = full[chosen]
        close(client.sends({"w": x})["w"], sent)
        held = full - sent


@pytest.mark.parametrize("feedback", [1.0, 0.5, 0.0])
def test_rand_k_sends_entries_that_the_key_alone_chooses(feedback: float) -> None:
    client, held = Client({"w": normal(40)}, RandK(0.1, feedback)), np.zeros(40)
    for turn in range(5):
        x, key = normal(40, seed=turn), rng.fold(KEY, turn)
        full = x.numpy() + feedback * held
        u = uniforms(first_key(key=key), 10).astype(np.float64)
        u = u[:5] + u[5:] / 2**24  # one of every ten entries, from a random one on
        chosen = (np.arange(4) * 10 + np.floor(10 * u[:4]) + np.floor(40 * u[4])).astype(int) % 40
        sent = np.zeros(40)
        sent[chosen] = full[chosen] * (1 if feedback else 10)
        close(client.sends({"w": x}, key)["w"], sent)
        held = full - sent


def gram_schmidt(p: Array) -> Array:
    return np.linalg.qr(p)[0]  # up to signs of columns, which the product does not see


@pytest.mark.parametrize("feedback", [1.0, 0.5, 0.0])
def test_low_rank_is_power_iteration_that_goes_on_where_the_last_one_ended(feedback: float) -> None:
    client, held, q = Client({"w": normal(12, 4, 5)}, LowRank(2, feedback)), np.zeros((12, 20)), None
    for turn in range(6):
        x = normal(12, 4, 5, seed=turn)
        q = rng.normal(rng.key("low_rank", 0), (20, 2)).double().numpy() if q is None else q
        full = x.double().numpy().reshape(12, 20) + feedback * held
        p = gram_schmidt(full @ q)  # Vogels et al., Algorithm 1
        q = full.T @ p
        close(client.sends({"w": x})["w"].reshape(12, 20), p @ q.T, within=1e-5)
        held = full - p @ q.T


def test_low_rank_finds_the_largest_part_of_a_matrix_that_stays() -> None:
    x = normal(20, 30)
    client = Client({"w": x}, LowRank(3, feedback=0.0))
    for _ in range(200):
        sent = client.sends({"w": x})["w"]
    u, s, v = np.linalg.svd(x.double().numpy(), full_matrices=False)
    close(sent, (u[:, :3] * s[:3]) @ v[:3], within=1e-3)


def test_low_rank_goes_on_after_an_update_of_zeros() -> None:
    client = Client({"w": torch.zeros(8, 9)}, LowRank(2))
    assert not client.sends({"w": torch.zeros(8, 9)})["w"].any()
    assert client.sends({"w": normal(8, 9)})["w"].any()


def test_low_rank_goes_on_with_all_its_columns_after_a_matrix_of_lower_rank() -> None:
    client, x = Client({"w": torch.zeros(8, 9)}, LowRank(2, feedback=0.0)), normal(8, 2) @ normal(2, 9, seed=1)
    client.sends({"w": torch.outer(normal(8), normal(9))})
    close(client.sends({"w": x})["w"], x.numpy(), within=1e-4)


def test_small_columns_are_not_taken_for_none() -> None:
    columns = orthonormal(torch.stack([1e4 * normal(50), 1e-4 * normal(50, seed=1)], 1))
    close(columns.T @ columns, np.eye(2), within=1e-5)
    assert not orthonormal(torch.stack([normal(50), 2 * normal(50)], 1))[:, 1].any()


@pytest.mark.parametrize(("form", "kept"), [("float16", 10), ("bfloat16", 7)])
def test_half_rounds_to_the_nearest_of_so_many_digits(form: str, kept: int) -> None:
    x = normal(300)
    mantissa, exponent = np.frexp(x.double().numpy())
    wanted = np.ldexp(np.round(mantissa * 2 ** (kept + 1)), exponent - kept - 1)
    assert np.array_equal(Client({"w": x}, HalfPrecision(form)).sends({"w": x})["w"].numpy(), wanted)  # type: ignore[arg-type]


def test_what_float16_cannot_hold_becomes_its_largest() -> None:
    x = torch.tensor([1e6, -1e6, 1.0])
    assert Client({"w": x}, HalfPrecision()).sends({"w": x})["w"].tolist() == [65504.0, -65504.0, 1.0]


def test_layers_that_are_not_sent_are_zeros() -> None:
    value = {"delta": {"fc.weight": normal(3), "conv.weight": normal(2), "fc.bias": normal(1)}, "buffers": {}}
    sent = Client(value, MaskLayers(("fc*",))).sends(value)
    assert torch.equal(sent["delta"]["fc.weight"], value["delta"]["fc.weight"])
    assert torch.equal(sent["delta"]["fc.bias"], value["delta"]["fc.bias"])
    assert sent["delta"]["conv.weight"].tolist() == [0.0, 0.0]
    assert sent["buffers"] == {}
