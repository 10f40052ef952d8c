"""Transforms: what each does, and chains that cannot hold are refused with advice."""

import math
from typing import Any

import pytest
import torch

from atoll import rng, tree
from atoll.core import Chain, Spec, Total, Transform, Update, extract, inject
from atoll.errors import SpecError
from atoll.experiment import build
from atoll.reducers import REDUCERS, Collect
from atoll.transforms import TRANSFORMS
from atoll.transforms.clip import ClipL2
from atoll.transforms.compress import TopK
from atoll.transforms.noise import GaussianNoise
from atoll.transforms.weights import EqualWeights

EQUAL, CLIP, NOISE, TOP = EqualWeights(), ClipL2(0.5), GaussianNoise(2.0), TopK(0.25)
KEY = rng.key("test")


def chain(*layers: Transform) -> Chain:
    return Chain(tuple(layers))


def update(*values: float, weight: float = 3.0) -> Update:
    return Update({"delta": {"w": torch.tensor(values)}, "buffers": {}}, torch.tensor(weight))


@pytest.mark.parametrize(
    ("layers", "reducer", "advice"),
    [
        ([EQUAL, NOISE], "mean", "put clip_l2 before it"),
        ([NOISE], "mean", "put clip_l2 before it"),
        ([EQUAL, NOISE, CLIP], "mean", "put clip_l2 before it"),
        ([CLIP, NOISE], "mean", "put equal_weights before it"),
        ([CLIP, NOISE, EQUAL], "mean", "put equal_weights before it"),
        ([EQUAL, CLIP, NOISE], "median", "use reducer = 'mean'"),
        ([EQUAL, CLIP, NOISE], "trimmed_mean", "use reducer = 'mean'"),
        ([EQUAL, CLIP, TOP, NOISE], "mean", "put clip_l2 before it"),
    ],
)
def test_a_chain_that_cannot_hold_is_refused_with_advice(layers: list[Transform], reducer: str, advice: str) -> None:
    with pytest.raises(SpecError) as refused:
        chain(*layers).bind(REDUCERS[reducer]().spec())
    assert advice in str(refused.value)


def test_noise_is_refused_where_nobody_sums() -> None:
    with pytest.raises(SpecError, match="protects a sum"):
        chain(EQUAL, CLIP, NOISE).bind(Collect().spec())


def test_noise_is_refused_on_modular_sums() -> None:
    with pytest.raises(SpecError, match="put it before that"):
        NOISE.bind(Spec(l2=1.0, equal_weights=True, domain="modular"))


@pytest.mark.parametrize("layers", [[EQUAL, CLIP, NOISE], [CLIP, EQUAL, NOISE], [TOP, EQUAL, CLIP, NOISE]])
def test_a_chain_that_holds_is_bound_to_its_bound(layers: list[Transform]) -> None:
    bound, spec = chain(*layers).bind(Spec())
    assert spec.l2 == 0.5
    assert spec.equal_weights
    assert bound.transforms[-1] == GaussianNoise(2.0, sensitivity=0.5, fixed=True)


def test_binding_leaves_the_template_alone() -> None:
    template = chain(EQUAL, CLIP, NOISE)
    template.bind(Spec())
    assert math.isnan(template.transforms[-1].sensitivity)  # type: ignore[attr-defined]


def test_the_tighter_of_two_bounds_counts() -> None:
    assert chain(ClipL2(0.5), ClipL2(2.0)).bind(Spec())[1].l2 == 0.5
    assert chain(ClipL2(2.0), ClipL2(0.5)).bind(Spec())[1].l2 == 0.5


def test_clipping_scales_down_and_never_up() -> None:
    long, _ = CLIP.client(update(3.0, 4.0), {}, {}, KEY)
    assert torch.allclose(long.value["delta"]["w"], torch.tensor([0.3, 0.4]))
    short, _ = CLIP.client(update(0.03, 0.04), {}, {}, KEY)
    assert torch.equal(short.value["delta"]["w"], torch.tensor([0.03, 0.04]))
    none, _ = CLIP.client(update(0.0, 0.0), {}, {}, KEY)
    assert torch.equal(none.value["delta"]["w"], torch.zeros(2))
    assert float(long.weight) == 3.0


def test_clipping_counts_every_part_of_an_update() -> None:
    u = Update({"delta": {"w": torch.tensor([3.0])}, "control": {"w": torch.tensor([4.0])}}, torch.ones(()))
    clipped, _ = CLIP.client(u, {}, {}, KEY)
    assert float(tree.norm(clipped.value)) == pytest.approx(0.5, rel=1e-5)
    assert float(tree.norm(clipped.value)) <= 0.5


def test_equal_weights_are_one() -> None:
    assert float(EQUAL.client(update(1.0), {}, {}, KEY)[0].weight) == 1.0


def test_the_largest_share_is_sent_and_the_rest_is_held_back() -> None:
    top, _ = TOP.bind(Spec())
    _, memory = top.init({"delta": {"w": torch.zeros(4)}, "buffers": {}})
    sent, memory = top.client(update(1.0, -3.0, 2.0, 0.5), {}, memory, KEY)
    assert sent.value["delta"]["w"].tolist() == [0.0, -3.0, 0.0, 0.0]
    assert memory["residual"]["delta"]["w"].tolist() == [1.0, 0.0, 2.0, 0.5]
    sent, memory = top.client(update(0.0, 0.0, 0.5, 0.0), {}, memory, KEY)
    assert sent.value["delta"]["w"].tolist() == [0.0, 0.0, 2.5, 0.0]
    assert memory["residual"]["delta"]["w"].tolist() == [1.0, 0.0, 0.0, 0.5]


@pytest.mark.parametrize(("share", "size", "kept"), [(0.1, 25, 3), (1e-6, 25, 1), (1.0, 7, 7), (0.5, 1, 1)])
def test_at_least_one_entry_is_sent(share: float, size: int, kept: int) -> None:
    top, _ = TopK(share).bind(Spec())
    like = {"w": torch.arange(1.0, size + 1)}
    sent, _ = top.client(Update(like, torch.ones(())), {}, top.init(like)[1], KEY)
    assert int((sent.value["w"] != 0).sum()) == kept


def test_what_is_sent_is_counted_in_bits() -> None:
    assert TOP.bind(Spec())[1].bits == 0.25 * (32 + 2 + 2)  # of one in four, and where it is
    assert TopK(0.25, positions="int64").bind(Spec())[1].bits == 0.25 * (32 + 64)
    assert CLIP.bind(Spec())[1].bits == 32.0


def test_noise_has_the_deviation_it_claims_and_is_keyed() -> None:
    bound, _ = chain(EQUAL, CLIP, NOISE).bind(Spec())
    state, _ = bound.init({"a": torch.zeros(2)})
    total = Total({"a": torch.zeros(40_000), "b": torch.zeros(40_000)}, torch.tensor(10.0), torch.tensor(10.0))
    noisy, _ = bound.server(total, state, KEY)
    for x in tree.leaves(noisy.value):
        assert float(x.std()) == pytest.approx(2.0 * 0.5, rel=0.02)
        assert abs(float(x.mean())) < 0.02
    again, _ = bound.server(total, state, KEY)
    other, _ = bound.server(total, state, rng.key("other"))
    assert tree.digest(again.value) == tree.digest(noisy.value)
    assert abs(float(torch.corrcoef(torch.stack([noisy.value["a"], other.value["a"]]))[0, 1])) < 0.02
    assert abs(float(torch.corrcoef(torch.stack([noisy.value["a"], noisy.value["b"]]))[0, 1])) < 0.02
    assert float(noisy.weight) == 10.0


def test_no_multiplier_is_no_noise() -> None:
    bound, _ = chain(EQUAL, CLIP, GaussianNoise(0.0)).bind(Spec())
    total = Total({"a": torch.ones(3)}, torch.ones(()), torch.ones(()))
    assert torch.equal(bound.server(total, bound.init(total.value)[0], KEY)[0].value["a"], torch.ones(3))


class Times(Transform):
    """Multiplies on the way in and adds on the way out, to see the order."""

    def __init__(self, by: float) -> None:
        self.by = by

    def client(self, update: Update, state: Any, memory: Any, key: Any) -> tuple[Update, Any]:
        return update._replace(value=tree.map(lambda x: 10 * x + self.by, update.value)), memory

    def server(self, total: Total, state: Any, key: Any) -> tuple[Total, Any]:
        return Total(tree.map(lambda x: 10 * x + self.by, total.value), total.weight, total.count), state


def test_client_sides_run_in_order_and_server_sides_in_reverse() -> None:
    onion = chain(Times(1.0), Times(2.0))
    state, memory = onion.init({"w": torch.zeros(())})
    u, _ = onion.client(Update({"w": torch.zeros(())}, torch.ones(())), state, memory, KEY)
    assert float(u.value["w"]) == 12.0
    total, _ = onion.server(Total({"w": torch.zeros(())}, torch.ones(()), torch.ones(())), state, KEY)
    assert float(total.value["w"]) == 21.0


def test_layers_keep_their_memories_apart_and_draw_from_different_keys() -> None:
    two, _ = chain(TOP, EQUAL, TOP).bind(Spec())
    state, memory = two.init({"w": torch.zeros(4)})
    _, memory = two.client(Update({"w": torch.tensor([4.0, 3.0, 2.0, 1.0])}, torch.ones(())), state, memory, KEY)
    assert memory["0"]["residual"]["w"].tolist() == [0.0, 3.0, 2.0, 1.0]
    assert memory["2"]["residual"]["w"].tolist() == [0.0, 0.0, 0.0, 0.0]
    noise = GaussianNoise(1.0, sensitivity=1.0)
    total = Total({"w": torch.zeros(100)}, torch.ones(()), torch.ones(()))
    once, _ = chain(noise).server(total, {"0": {}}, KEY)
    twice, _ = chain(noise, noise).server(total, {"0": {}, "1": {}}, KEY)
    assert not torch.allclose(twice.value["w"], 2 * once.value["w"])


def test_settings_of_a_chain_are_data() -> None:
    bound, _ = chain(EQUAL, CLIP, NOISE).bind(Spec())
    settings = extract(bound)
    assert {p: pytest.approx(float(x)) for p, x in tree.paths(settings)} == {
        "transforms/1/max_norm": 0.5,
        "transforms/2/noise_multiplier": 2.0,
        "transforms/2/sensitivity": 0.5,
    }
    settings["transforms"]["1"]["max_norm"] = torch.tensor(0.25)
    clipped, _ = inject(bound, settings).client(
        update(3.0, 4.0), {str(i): {} for i in range(3)}, {str(i): {} for i in range(3)}, KEY
    )
    assert float(tree.norm(clipped.value)) == pytest.approx(0.25, rel=1e-5)


def test_a_file_builds_what_python_does() -> None:
    assert build(TRANSFORMS, {"name": "clip_l2", "max_norm": 0.5}, where="transform.0") == CLIP
