"""What says that it is right on average is; what must shrink errors does; what keeps a bound never breaks it."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap

from atoll import rng, tree
from atoll.core import Chain, Spec, Transform, Update
from atoll.transforms.compress import (
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
)
from atoll.transforms.compress import UniformQuantise as Uniform
from atoll.transforms.compress.rotation import rotated, rotated_back
from tests.support.compressing import KEY, Client, normal

KEYS = 4000


def many(value: dict[str, Tensor], *transforms: Transform, keys: int = KEYS) -> dict[str, Tensor]:
    """What arrives of one update under so many keys, stacked."""
    chain, _ = Chain(transforms).bind(Spec())
    state, own = chain.init(value)
    drawn = torch.stack([torch.tensor([KEY[0], i]) for i in range(keys)])
    once = lambda key: chain.client(Update(value, torch.ones(())), state, own, key)[0].value  # noqa: E731
    return vmap(once)(drawn)  # type: ignore[no-any-return]


UNEVEN = torch.tensor([3.0, -1.0, 0.2, 0.0, 1e-3, -0.7, 2.0, 0.05, -0.3, 1.1, 0.9])

UNBIASED: dict[str, list[Transform]] = {
    "rand_k": [RandK(0.3)],
    "qsgd": [Qsgd(4)],
    "qsgd, one level": [Qsgd(1)],
    "uniform": [Uniform(2)],
    "uniform, one bit": [Uniform(1)],
    "uniform, rotated": [Uniform(2, rotate=True)],
    "rand_k, then qsgd": [RandK(0.5), Qsgd(4)],
    "rand_k, then uniform": [RandK(0.5), Uniform(2)],
    "qsgd, entropy": [Qsgd(4), Entropy()],
}


@pytest.mark.parametrize("name", UNBIASED)
def test_what_says_that_it_is_unbiased_is(name: str) -> None:
    assert Chain(UNBIASED[name]).bind(Spec())[1].unbiased
    arrived = many({"a": UNEVEN, "b": normal(3, 5)}, *UNBIASED[name])
    for found, wanted in ((arrived["a"], UNEVEN), (arrived["b"], normal(3, 5))):
        error = (found.double().mean(0) - wanted).abs()
        standard = found.double().std(0) / math.sqrt(KEYS)
        rare = 5 * float(found.abs().max()) / KEYS  # what happens once in thousands of draws may not happen here
        assert (error <= 5 * standard + rare).all(), (error / standard).max()


@pytest.mark.parametrize(
    "biased",
    [TopK(0.3), RandK(0.3, feedback=1.0), Sign(), Ternary(), LowRank(1), HalfPrecision(), Drive(), MaskLayers(("a",))],
)
def test_what_is_biased_says_so(biased: Transform) -> None:
    assert not biased.bind(Spec())[1].unbiased
    assert not Chain((biased, Qsgd())).bind(Spec())[1].unbiased


def test_drive_is_nearly_right_on_average_where_many_entries_are_of_one_size_and_not_elsewhere() -> None:
    dense = normal(256)
    mean = many({"a": dense}, Drive(), keys=2000)["a"].mean(0)
    assert float((mean - dense).norm() / dense.norm()) < 0.1
    assert float(many({"a": dense}, Drive("nearest"), keys=500)["a"].mean(0) @ dense / (dense @ dense)) < 0.75
    sparse = torch.zeros(256)
    sparse[:2] = torch.tensor([1.0, 0.5])
    assert many({"a": sparse}, Drive(), keys=500)["a"].mean(0)[1].abs() < 1e-3  # signs show nothing of it


@pytest.mark.parametrize("n", [1, 2, 100, 4096, 9000])
def test_the_rotation_keeps_lengths_and_comes_back(n: int) -> None:
    x = normal(n)
    there = rotated(x, KEY)
    assert float(there.norm()) == pytest.approx(float(x.norm()), rel=1e-5)
    assert torch.allclose(rotated_back(there, n, KEY), x, atol=1e-5)


def test_the_rotation_is_orthogonal_and_depends_on_its_key() -> None:
    matrix = vmap(lambda x: rotated(x, KEY).flatten())(torch.eye(64))
    assert torch.allclose(matrix @ matrix.T, torch.eye(64), atol=1e-5)
    assert torch.allclose(matrix.abs(), torch.full((64, 64), 1 / 8), atol=1e-6)
    assert not torch.equal(matrix, vmap(lambda x: rotated(x, rng.key("other")).flatten())(torch.eye(64)))


def lost(value: Tensor, arrived: Tensor) -> float:
    """The mean of |x - C(x)|^2 / |x|^2."""
    return float(((arrived - value) ** 2).flatten(1).sum(1).mean() / (value**2).sum())


@pytest.mark.parametrize("share", [0.1, 0.25, 1.0])
@pytest.mark.parametrize("x", [normal(40), UNEVEN.repeat(4)[:40], torch.ones(40)])
def test_sparse_ones_lose_no_more_than_what_they_leave_out(share: float, x: Tensor) -> None:
    k = math.ceil(share * 40) / 40  # delta = k / n (Stich et al., 2018)
    assert lost(x, Client({"w": x}, TopK(share)).sends({"w": x})["w"][None]) <= 1 - k + 1e-6
    found = many({"w": x}, RandK(share, feedback=1.0), keys=2000)["w"]
    assert lost(x, found) <= 1 - k + 5 * float((found**2).sum(1).std() / (x**2).sum()) / math.sqrt(2000) + 1e-6


@pytest.mark.parametrize("x", [normal(40), UNEVEN.repeat(4)[:40], torch.ones(40)])
def test_signs_and_ternary_lose_what_one_size_for_all_must(x: Tensor) -> None:
    norm1, norm2 = float(x.abs().sum()), float((x**2).sum())
    # delta = |x|_1^2 / (n |x|_2^2) (Karimireddy et al., 2019), of 40 and of the largest 10
    assert lost(x, Client({"w": x}, Sign()).sends({"w": x})["w"][None]) == pytest.approx(
        1 - norm1**2 / (40 * norm2), abs=1e-5
    )
    largest = float(x.abs().topk(10).values.sum())
    found = lost(x, Client({"w": x}, Ternary(0.25, 0.0)).sends({"w": x})["w"][None])
    assert found == pytest.approx(1 - largest**2 / (10 * norm2), abs=1e-5)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_low_rank_loses_no_more_than_a_random_projection(rank: int) -> None:
    rates = []
    for seed in range(40):
        x = normal(8, 12, seed=(rank, seed))
        rates.append(lost(x, Client({"w": x}, LowRank(rank, feedback=0.0)).sends({"w": x})["w"][None]))
    assert max(rates) <= 1.0
    assert sum(rates) / 40 <= 1 - rank / 8  # delta = rank / min(rows, columns)


@pytest.mark.parametrize(("levels", "n"), [(1, 100), (4, 100), (64, 100)])
def test_qsgd_is_no_noisier_than_its_theorem_says(levels: int, n: int) -> None:
    x = normal(n)
    bound = min(n / levels**2, math.sqrt(n) / levels)  # Alistarh et al., Lemma 3.1
    found = many({"w": x}, Qsgd(levels), keys=500)["w"]
    assert lost(x, found) <= bound * 1.05


@pytest.mark.parametrize("rotate", [False, True])
def test_uniform_quantisation_is_no_noisier_than_its_theorem_says(rotate: bool) -> None:
    x = torch.zeros(128)
    x[0], x[1] = 1.0, -1.0
    found = lost(x, many({"w": x}, Uniform(2, rotate), keys=500)["w"])
    span = 2.0 if not rotate else 2 * math.sqrt(2 * (math.log(128) + 1) / 128 * 2)
    assert found <= 128 * (span / 3) ** 2 / 4 / 2  # n (range / steps)^2 / 4 (Suresh et al., Theorem 2)


def test_a_rotation_makes_the_error_of_a_few_large_entries_smaller() -> None:
    x = torch.zeros(1024)
    x[:4] = torch.tensor([10.0, -10.0, 5.0, 2.0])
    plain, turned = (lost(x, many({"w": x}, Uniform(1, rotate), keys=50)["w"]) for rotate in (False, True))
    assert turned < plain / 20


BOUNDED: dict[str, list[Transform]] = {
    "top_k": [TopK(0.2, 0.0)],
    "rand_k": [RandK(0.2)],
    "low_rank": [LowRank(1, 0.0)],
    "qsgd": [Qsgd(2)],
    "uniform": [Uniform(2)],
    "uniform, rotated": [Uniform(2, rotate=True)],
    "drive": [Drive("nearest")],
    "half": [HalfPrecision()],
    "bfloat16": [HalfPrecision("bfloat16")],
    "sign": [Sign()],
    "majority": [Sign("majority", 0.1)],
    "ternary": [Ternary(0.3, 0.0)],
    "mask_layers": [MaskLayers(("a", "c"))],
    "top_k, qsgd": [TopK(0.5, 0.0), Qsgd(3)],
    "qsgd, half": [Qsgd(3), HalfPrecision()],
    "drive, half": [Drive("nearest"), HalfPrecision()],
    "low_rank, entropy": [LowRank(1, 0.0), Entropy()],
    "low_rank, half": [LowRank(2, 0.0), HalfPrecision("bfloat16")],
    "low_rank, top_k": [LowRank(2, 0.0), TopK(0.5, 0.0)],
    "uniform, half": [Uniform(16), HalfPrecision("bfloat16")],
}
UNKNOWN = {"low_rank, half", "low_rank, top_k", "uniform, half"}  # products and sums of what was rounded


@st.composite
def updates(draw: Any) -> tuple[dict[str, Tensor], float]:
    """Tensors of 1 to 40 numbers, some of them alike or 0, and the length that they are brought to."""
    shape = draw(st.sampled_from([(4, 9), (8, 7), (12, 5)]))
    scale = 10.0 ** torch.tensor([draw(st.integers(-6, 6)) for _ in range(3)])
    x = {"a": normal(*shape, seed=draw(st.integers(0, 99))), "b": normal(6, seed=draw(st.integers(0, 99)))}
    x["c"] = torch.full((), draw(st.floats(-3, 3, width=32)))
    if draw(st.booleans()):
        x["a"] = x["a"].round()
    length = 10.0 ** draw(st.integers(-9, 6))
    value = {name: v * s for (name, v), s in zip(x.items(), scale, strict=True)}
    return tree.scale(value, length / float(tree.norm(value).clamp(min=1e-20))), length


@pytest.mark.parametrize("name", BOUNDED)
@given(updates(), st.integers(0, 2**31))
def test_bounds_hold_for_updates_of_any_kind(name: str, made: tuple[dict[str, Tensor], float], word: int) -> None:
    value, length = made
    l1 = float(sum(x.abs().double().sum() for x in tree.leaves(value)))
    client = Client(value, *BOUNDED[name], spec=Spec(l2=length, l1=l1, size=tree.count(value)))
    sent = client.sends(value, torch.tensor([word, 1]))
    if name in UNKNOWN:
        assert client.spec.l2 is None
        return
    assert client.spec.l2 is not None
    assert float(tree.norm(sent)) <= client.spec.l2 * (1 + 1e-5)
    if client.spec.l1 is not None:
        assert float(sum(x.abs().double().sum() for x in tree.leaves(sent))) <= client.spec.l1 * (1 + 1e-5)


def test_some_bounds_are_of_the_size_of_what_can_happen() -> None:
    assert Chain((TopK(0.2, 0.0),)).bind(Spec(l2=1.0, l1=2.0))[1].l1 == 2.0
    assert Chain((RandK(0.25),)).bind(Spec(l2=1.0))[1].l2 == 4.0
    assert Chain((Sign("majority", 0.1),)).bind(Spec(size=100))[1].l2 == pytest.approx(1.0)
    assert Chain((Uniform(8, rotate=True),)).bind(Spec(l2=1.0, size=100))[1].l2 == pytest.approx(1 + 20 / 255)


def test_what_low_rank_packed_may_grow_when_it_is_packed_again() -> None:
    twice, x = (LowRank(2, 0.0), TopK(0.6, 0.0)), normal(4, 2, seed=19) @ normal(2, 9, seed=-19)
    assert float(Client({"w": x}, *twice).sends({"w": x})["w"].norm() / x.norm()) > 1.1
    _, spec = Chain(twice).bind(Spec(l2=1.0, size=36))
    assert spec.l2 is None
    assert "top_k rounds what low_rank packed" in spec.unbounded_because
