"""Compressors beside one another and beside other transforms: one message, honest bounds, refusals with advice."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Chain, Spec, Total, Transform, Update, transform_name
from atoll.errors import ConfigError, SpecError
from atoll.experiment import build
from atoll.transforms import TRANSFORMS
from atoll.transforms.adaptive import AdaptiveClip
from atoll.transforms.clip import ClipL2
from atoll.transforms.compress import (
    Compression,
    Drive,
    Entropy,
    HalfPrecision,
    LowRank,
    MaskLayers,
    Qsgd,
    RandK,
    Relevance,
    Sign,
    Sketch,
    Ternary,
    TopK,
)
from atoll.transforms.compress import UniformQuantise as Uniform
from atoll.transforms.integers import FixedPoint, SecureSum
from atoll.transforms.local_noise import LocalGaussian, Privunit
from atoll.transforms.noise import GaussianNoise
from atoll.transforms.shared_mask import SharedMask
from atoll.transforms.weights import EqualWeights
from atoll.wire import decode, encode
from tests.support.compressing import KEY, Client, normal

RUN = Spec(cohort=10, size=200, rounds=40)
EQUAL, CLIP, NOISE = EqualWeights(), ClipL2(0.5), GaussianNoise(2.0)
VALUE: dict[str, Any] = {
    "delta": {"fc.weight": normal(9, 12), "conv.weight": normal(4, 3, 3, seed=1), "fc.bias": normal(9, seed=2)},
    "buffers": {"bn.count": torch.tensor(7), "bn.mean": normal(4, seed=3), "bn.empty": torch.zeros(0)},
    "scale": torch.tensor(0.7),
}
ZEROS = tree.zeros_like(VALUE)
TINY = tree.map(lambda x: x * 1e-30 if x.is_floating_point() else x, VALUE)
MESSAGES: dict[str, list[Transform]] = {
    "top_k": [TopK(0.1, 0.0)],
    "top_k, int64": [TopK(0.1, 0.0, "int64")],
    "rand_k": [RandK(0.1)],
    "low_rank": [LowRank(2, 0.0)],
    "qsgd": [Qsgd(7)],
    "qsgd, many levels": [Qsgd(2**15)],
    "uniform": [Uniform(3)],
    "uniform, rotated": [Uniform(16, rotate=True)],
    "drive": [Drive()],
    "half": [HalfPrecision()],
    "bfloat16": [HalfPrecision("bfloat16")],
    "sign": [Sign()],
    "majority": [Sign("majority")],
    "ternary": [Ternary(0.1, 0.0)],
    "mask_layers": [MaskLayers(("fc*",))],
    "top_k, half": [TopK(0.1, 0.0), HalfPrecision()],
    "top_k, qsgd": [TopK(0.1, 0.0), Qsgd(7)],
    "rand_k, uniform": [RandK(0.1), Uniform(4)],
    "low_rank, half": [LowRank(2, 0.0), HalfPrecision()],
    "low_rank, qsgd, half": [LowRank(2, 0.0), Qsgd(), HalfPrecision()],
    "mask_layers, top_k": [MaskLayers(("fc*",)), TopK(0.1, 0.0)],
    "mask_layers, low_rank, half": [MaskLayers(("*.weight",)), LowRank(2, 0.0), HalfPrecision()],
    "mask_layers, drive": [MaskLayers(("fc.bias",)), Drive()],
    "ternary, half": [Ternary(0.1, 0.0), HalfPrecision()],
    "top_k, entropy": [TopK(0.1, 0.0), Entropy()],
    "qsgd, entropy": [Qsgd(3), Entropy()],
    "sign, zstd": [Sign(), Entropy("zstd")],
    "top_k, qsgd, half, zstd": [TopK(0.1, 0.0), Qsgd(3), HalfPrecision(), Entropy("zstd")],
}


def compression(*transforms: Transform) -> Compression:
    chain, _ = Chain(transforms).bind(RUN)
    first = chain.transforms[0]
    assert isinstance(first, Compression)
    assert len(first.compressors) == len(transforms)
    return first


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("value", [VALUE, ZEROS, TINY], ids=["dense", "zeros", "tiny"])
def test_what_travels_as_bytes_is_what_the_server_unpacks(name: str, value: dict[str, Any]) -> None:
    message = compression(*MESSAGES[name])
    _, own = message.init(VALUE)
    packed, _, stages = message.packed(value, own.get("kept", {}), KEY)
    layout = message.layout(value)
    data = encode(layout, {"weight": torch.ones(()), **packed._asdict()}, kind="update", round=0, sender=0)
    arrived = decode(data).tree
    codes, numbers = arrived.get("codes", {}), arrived.get("numbers", {})
    server = [tree.zeros_like(stage) for stage in message.stages(VALUE)]  # it knows shapes, and no numbers
    found = message.unpacked(type(packed)(numbers, codes), server, KEY)
    sent, _ = message.client(Update(value, torch.ones(())), {}, own, KEY)
    assert tree.digest(found) == tree.digest(sent.value)
    assert [x.dtype for x in tree.leaves(found)] == [x.dtype for x in tree.leaves(value)]
    assert layout.fixed_bytes is None or layout.fixed_bytes == len(data)
    assert [tree.map(lambda x: x.shape, s) for s in stages] == [tree.map(lambda x: x.shape, s) for s in server]


@pytest.mark.parametrize(
    "pair",
    ["top_k, half", "top_k, qsgd", "rand_k, uniform", "mask_layers, top_k", "qsgd, entropy", "mask_layers, drive"],
)
def test_two_in_one_message_give_what_two_stages_would(pair: str) -> None:
    """On the numbers that are left: the second one alone, given what the first one left."""
    first, second = MESSAGES[pair]
    both = compression(first, second)
    _, _, stages = both.packed(VALUE, {}, KEY)
    one, other = first.bind(RUN)[0], second.bind(RUN)[0]
    assert isinstance(one, Compression)
    assert isinstance(other, Compression)
    (numbers, codes), _ = one.compressors[0].pack(VALUE, {}, rng.fold(KEY, 0))
    key = rng.fold(KEY, 1)
    rounded = other.compressors[0].unpack(other.compressors[0].pack(numbers, {}, key)[0], stages[1], key)
    wanted = one.compressors[0].unpack(type(both.packed(VALUE, {}, KEY)[0])(rounded, codes), VALUE, rng.fold(KEY, 0))
    sent, _ = both.client(Update(VALUE, torch.ones(())), {}, {}, KEY)
    assert tree.digest(sent.value) == tree.digest(wanted)


def test_rounding_after_choosing_is_choosing_after_rounding_for_half_alone() -> None:
    def sent(*transforms: Transform) -> Tensor:
        return Client(VALUE, *transforms).sends(VALUE)["delta"]["fc.weight"]

    assert torch.equal(sent(TopK(0.1, 0.0), HalfPrecision("bfloat16")) != 0, sent(TopK(0.1, 0.0)) != 0)
    assert torch.equal(sent(TopK(0.1, 0.0), HalfPrecision()), sent(TopK(0.1, 0.0), EQUAL, HalfPrecision()))
    assert not torch.equal(
        sent(TopK(0.1, 0.0), Qsgd(3)), sent(TopK(0.1, 0.0), EQUAL, Qsgd(3))
    )  # zeros are a level, too
    assert int((sent(TopK(0.1, 0.0), Sign()) != 0).sum()) == 11


def test_feedback_holds_back_what_the_whole_message_lost() -> None:
    client = Client(VALUE, TopK(0.1), HalfPrecision("bfloat16"))
    sent = client.sends(VALUE)
    assert tree.digest(tree.add(sent, client.residual())) == tree.digest(tree.add(sent, tree.sub(VALUE, sent)))
    rounding = client.residual()["delta"]["fc.weight"][sent["delta"]["fc.weight"] != 0]
    assert 0 < float(rounding.abs().max()) < 0.01


def test_whole_numbers_and_single_ones_arrive_as_they_are() -> None:
    for name in ("top_k", "rand_k", "qsgd", "drive", "sign", "ternary", "low_rank", "uniform, rotated"):
        sent = Client(VALUE, *MESSAGES[name]).sends(VALUE)
        assert torch.equal(sent["buffers"]["bn.count"], VALUE["buffers"]["bn.count"])
        assert sent["buffers"]["bn.count"].dtype == torch.int64
        assert torch.equal(sent["scale"], VALUE["scale"])


@pytest.mark.parametrize("feedback", [1.0, 0.5])
def test_memory_keeps_its_types_beside_whole_numbers(feedback: float) -> None:
    client = Client(VALUE, TopK(0.1, feedback))
    before = [x.dtype for x in tree.leaves(client.own)]
    for _ in range(2):
        client.sends(VALUE)
    assert [x.dtype for x in tree.leaves(client.own)] == before


REFUSED: list[tuple[list[Transform], str]] = [
    ([EQUAL, CLIP, NOISE, TopK(0.1)], "top_k changes what the noise before it was measured for: put it before"),
    ([EQUAL, CLIP, NOISE, Qsgd()], "qsgd changes what the noise before it was measured for: put it before the noise"),
    ([EQUAL, CLIP, NOISE, Sketch(8)], "sketch changes what the noise before it was measured for"),
    ([EQUAL, CLIP, TopK(0.1), NOISE], "(top_k adds what it held back, after clipping): put clip_l2 before it"),
    ([EQUAL, CLIP, LowRank(2), NOISE], "(low_rank adds what it held back, after clipping): put clip_l2 before it"),
    ([EQUAL, CLIP, Ternary(), NOISE], "(ternary adds what it held back, after clipping): put clip_l2 before it"),
    ([EQUAL, CLIP, Drive(), NOISE], "(quantisation can make an update longer, after clipping): put clip_l2 before"),
    (
        [EQUAL, CLIP, LowRank(2, 0.0), HalfPrecision(), NOISE],
        "(half rounds what low_rank packed, which can make an update longer)",
    ),
    ([EQUAL, CLIP, Sketch(8), NOISE], "gaussian_noise works on updates, but what is sent here is a sketch"),
    ([Sketch(8), Qsgd()], "qsgd works on updates, but what is sent here is a sketch of them: put it before sketch"),
    ([EQUAL, CLIP, FixedPoint(0.01), Qsgd()], "put it before fixed_point"),
    ([EQUAL, CLIP, FixedPoint(0.01), SecureSum(24), TopK(0.1)], "the sum is modular here: put it before that"),
    ([EQUAL, CLIP, TopK(0.1), FixedPoint(0.01), SecureSum(24)], "(top_k adds what it held back, after clipping)"),
    ([EQUAL, CLIP, Qsgd(), SecureSum(24)], "secure_sum works on integers: put fixed_point before it"),
    ([EQUAL, CLIP, Relevance()], "who sends depends on its data"),
    ([TopK(0.1), Relevance()], "relevance would lose what is not sent: put it before all feedback"),
]


@pytest.mark.parametrize(("layers", "advice"), REFUSED)
def test_a_chain_that_cannot_hold_is_refused_with_advice(layers: list[Transform], advice: str) -> None:
    with pytest.raises(SpecError) as refused:
        Chain(layers).bind(RUN)
    assert advice in str(refused.value)


@pytest.mark.parametrize(
    ("layers", "advice"),
    [
        (
            [RandK(0.1), TopK(0.1)],
            "rand_k: with feedback its errors would grow from round to round: give rand_k feedback",
        ),
        ([TopK(0.1), HalfPrecision(), RandK(0.1)], "give rand_k feedback, too"),
        ([TopK(0.5), Qsgd(7)], "qsgd: with feedback its errors would grow from round to round: use 8 levels or more"),
        ([TopK(0.5), Uniform(2)], "use 3 bits or more"),
    ],
)
def test_errors_that_feedback_would_make_grow_are_refused(layers: list[Transform], advice: str) -> None:
    chain, _ = Chain(layers).bind(RUN)
    with pytest.raises(SpecError) as refused:
        chain.init(VALUE)
    assert advice in str(refused.value)


@pytest.mark.parametrize("layers", [[TopK(0.1)], [TopK(0.1), Qsgd(32)], [TopK(0.1), Uniform(4)], [TopK(0.1), Drive()]])
def test_errors_stay_where_they_are_under_the_feedback_that_is_allowed(layers: list[Transform]) -> None:
    client = Client({"w": torch.zeros(1000)}, *layers)
    for turn in range(40):
        client.sends({"w": normal(1000, seed=turn)}, rng.fold(KEY, turn))
    assert float(client.residual()["w"].norm()) < 4 * 1000**0.5 * 2


@pytest.mark.parametrize(("bits", "rotate"), [(7, False), (4, True)])
def test_the_fewest_bits_that_feedback_allows_hold_back_less_than_there_is(bits: int, rotate: bool) -> None:
    """Two entries of opposite signs among zeros: no zero lies on a step, so that every one of them is moved."""
    spiked = {"w": torch.zeros(20_000).index_fill(0, torch.tensor([3]), 1.0).index_fill(0, torch.tensor([9]), -1.0)}
    with pytest.raises(SpecError, match=f"use {bits} bits or more"):
        Client(spiked, TopK(1.0), Uniform(bits - 1, rotate=rotate))
    client = Client(spiked, TopK(1.0), Uniform(bits, rotate=rotate))
    client.sends(spiked)
    assert float(client.residual()["w"].norm()) < float(spiked["w"].norm())


@pytest.mark.parametrize("first", [HalfPrecision(), Sign(), Drive()])
def test_a_compressor_that_finds_nothing_left_to_pack_is_refused(first: Transform) -> None:
    chain, _ = Chain([first, TopK(0.1, 0.0)]).bind(RUN)
    with pytest.raises(SpecError, match="before it leaves no numbers that it could pack: put top_k first"):
        chain.init(VALUE)


# By hand: 2,410 float32 numbers and a weight, or what the last transform makes of them.
CHANGED_AGAIN: list[tuple[list[Transform], Transform | None]] = [
    ([EQUAL, CLIP, TopK(0.05, 0.0), LocalGaussian(1.0, 1e-3)], None),
    ([EQUAL, CLIP, HalfPrecision(), LocalGaussian(1.0, 1e-3)], None),
    ([EQUAL, CLIP, TopK(0.05, 0.0), Privunit(2.0)], None),
    ([TopK(0.05), Sketch(100)], Sketch(100)),
    ([TopK(0.1), SharedMask(0.1)], SharedMask(0.1)),
]


@pytest.mark.parametrize(("layers", "alone"), CHANGED_AGAIN)
def test_bytes_are_those_of_what_leaves_the_chain_and_not_of_a_compressor_before(
    layers: list[Transform], alone: Transform | None
) -> None:
    like = {"w": torch.zeros(40, 60), "b": torch.zeros(10)}
    chain, _ = Chain(layers).bind(RUN)
    last, _ = Chain([] if alone is None else [alone]).bind(RUN)
    assert chain.upload(like, *chain.init(like)).fixed_bytes == last.upload(like, *last.init(like)).fixed_bytes


@pytest.mark.parametrize("following", [EQUAL, CLIP, Relevance()])
def test_what_only_weighs_or_scales_leaves_a_packed_message_as_long_as_it_was(following: Transform) -> None:
    like = {"w": torch.zeros(40, 60), "b": torch.zeros(10)}
    chain, _ = Chain([Qsgd(4), following]).bind(RUN)
    packed, _ = Chain([Qsgd(4)]).bind(RUN)
    assert chain.upload(like, *chain.init(like)).fixed_bytes == packed.upload(like, *packed.init(like)).fixed_bytes


def test_a_clip_that_adds_a_part_of_its_own_is_no_longer_the_packed_message() -> None:
    like = {"w": torch.zeros(40, 60)}
    chain, _ = Chain([Qsgd(4), EQUAL, AdaptiveClip()]).bind(RUN)
    assert chain.upload(like, *chain.init(like)).fixed_bytes > 4 * 2400


def test_a_reducer_that_sees_every_update_is_refused_under_a_sketch() -> None:
    with pytest.raises(SpecError, match="use reducer = 'mean'"):
        Sketch(8).bind(replace(RUN, additive=False))


@pytest.mark.parametrize(
    ("compressor", "factor"), [(TopK(0.1, 0.0), 1.0), (RandK(0.5), 2.0), (Sign(), 1.0), (Qsgd(10), 1 + 200**0.5 / 10)]
)
def test_noise_after_a_compressor_is_measured_for_what_it_may_send(compressor: Transform, factor: float) -> None:
    chain, spec = Chain((EQUAL, CLIP, compressor, NOISE)).bind(RUN)
    assert spec.noise == pytest.approx(2.0 * 0.5 * factor)
    state, own = chain.init({"w": torch.zeros(200)})
    total = Total({"w": torch.zeros(200)}, torch.tensor(10.0), torch.tensor(10.0), invited=10)
    deviation = float(chain.server(total, state, KEY)[0].value["w"].std())
    assert deviation == pytest.approx(2.0 * 0.5 * factor, rel=0.2)
    sent, _ = chain.client(Update({"w": 100 * normal(200)}, torch.ones(())), state, own, KEY)
    assert float(sent.value["w"].norm()) <= 0.5 * factor * (1 + 1e-5)


def test_a_clip_after_feedback_makes_a_bound_again() -> None:
    _, spec = Chain((TopK(0.1), EQUAL, CLIP, NOISE)).bind(RUN)
    assert spec.l2 == 0.5
    _, spec = Chain((EQUAL, CLIP, TopK(0.1, 0.0), FixedPoint(0.01), SecureSum(24))).bind(RUN)
    assert spec.domain == "modular"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"name": "top_k", "share": 0}, "transform.0.share: must be above 0"),
    ({"name": "top_k", "share": 1.5}, "transform.0.share: must be"),
    ({"name": "top_k"}, "share"),
    ({"name": "top_k", "share": 0.1, "feedback": 2}, "transform.0.feedback: must be"),
    ({"name": "top_k", "share": 0.1, "positions": "int8"}, "positions"),
    ({"name": "rand_k", "share": -1}, "transform.0.share: must be above 0"),
    ({"name": "rand_k", "share": 0.1, "feedback": -1}, "transform.0.feedback: must be"),
    ({"name": "low_rank", "rank": 0}, "transform.0.rank: must be"),
    ({"name": "low_rank", "rank": 10**6}, "transform.0.rank: must be"),
    ({"name": "low_rank", "rank": 1.5}, "transform.0.rank"),
    ({"name": "uniform_quantise", "bits": 0}, "transform.0.bits: must be"),
    ({"name": "uniform_quantise", "bits": 33}, "transform.0.bits: must be"),
    ({"name": "qsgd", "levels": 0}, "transform.0.levels: must be"),
    ({"name": "qsgd", "levels": 10**6}, "transform.0.levels: must be"),
    ({"name": "drive", "scale": "best"}, "'unbiased' or 'nearest'"),
    ({"name": "half", "format": "float8"}, "'float16' or 'bfloat16'"),
    ({"name": "sign", "size": "median"}, "'mean' or 'majority'"),
    ({"name": "sign", "step": 0}, "transform.0.step: must be above 0"),
    ({"name": "ternary", "share": 0}, "transform.0.share: must be above 0"),
    ({"name": "mask_layers", "send": []}, "transform.0.send"),
    ({"name": "mask_layers"}, "send"),
    ({"name": "sketch", "columns": 0}, "transform.0.columns: must be"),
    ({"name": "sketch", "columns": 8, "rows": 0}, "transform.0.rows: must be"),
    ({"name": "sketch", "columns": 8, "momentum": 1}, "transform.0.momentum: must be"),
    ({"name": "relevance", "threshold": 0}, "transform.0.threshold: must be above 0"),
    ({"name": "entropy", "code": "gzip"}, "'entropy' or 'zstd'"),
    ({"name": "topk", "share": 0.1}, "top_k"),
]


@pytest.mark.parametrize(("entry", "words"), BAD)
def test_bad_options_are_refused_by_name(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build(TRANSFORMS, entry, where="transform.0")
    assert words in str(refused.value)


COMPRESSORS = [name for name, made in TRANSFORMS.items() if made.__module__.startswith("atoll.transforms.compress")]


def test_every_compressor_is_registered_under_its_name_with_a_line_that_says_what_is_sent() -> None:
    assert len(COMPRESSORS) == 13
    for name in COMPRESSORS:
        first = (TRANSFORMS[name].__doc__ or "").splitlines()[0]
        assert 30 < len(first) <= 116, name
        assert first.endswith("."), name
        assert transform_name(object.__new__(TRANSFORMS[name])) == name
