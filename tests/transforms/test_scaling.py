"""What a clip multiplies by may wait for the sum: the same numbers, with a pass over all updates less."""

from dataclasses import dataclass

import pytest
import torch
from torch.func import vmap

from atoll import rng, tree
from atoll.core import Chain, Info, Scaling, Spec, Transform, Update
from atoll.reducers import Mean, Median
from atoll.testing.assertions import distance
from atoll.transforms.adaptive import AdaptiveClip
from atoll.transforms.clip import ClipL1, ClipL2, ClipLayers, ClipPerLayer
from atoll.transforms.local_noise import LocalGaussian
from atoll.transforms.weights import EqualWeights
from atoll.tree import Tree

KEY = rng.key("scaling")
INFO = Info(torch.arange(3), torch.ones(3), torch.ones(3), torch.zeros(3))
WEIGHT = torch.tensor([1.0, 3.0, 0.5])
VALUE = {
    "delta": {"a": rng.normal(rng.key(1), (3, 4, 5)), "b": 30.0 * rng.normal(rng.key(2), (3, 7))},
    "buffers": {},
    "gradients": torch.tensor([1.0, 2.0, 3.0]),
}
CLIPS = [
    ClipL2(0.5),
    ClipL1(2.0),
    ClipPerLayer(0.5),
    ClipLayers({"a": 0.3, "rest": 0.1}),
    AdaptiveClip(initial_max_norm=2.0),
]


def sent(chain: Chain) -> tuple[Update, Update, Tree]:
    """What the clients of the stack send: as they should, and in two parts."""
    state, memory = chain.init(tree.rows(VALUE, 0))

    def plain(value: Tree, weight: torch.Tensor) -> Update:
        return chain.client(Update(value, weight), state, memory, KEY)[0]

    def apart(value: Tree, weight: torch.Tensor) -> tuple[Update, Tree]:
        return chain.client_factored(Update(value, weight), state, memory, KEY)[:2]

    whole, parts = vmap(plain)(VALUE, WEIGHT), vmap(apart)(VALUE, WEIGHT)
    return Update(*whole), Update(*parts[0]), parts[1]


def bound(*layers: Transform) -> Chain:
    return Chain(layers).bind(Spec())[0]


@pytest.mark.parametrize("clip", CLIPS, ids=lambda c: type(c).__name__)
def test_a_sum_that_multiplies_in_passing_is_the_sum_of_what_was_multiplied(clip: Transform) -> None:
    whole, update, by = sent(bound(EqualWeights(), clip))
    assert tree.leaves(by)
    assert distance(update.value["delta"], VALUE["delta"]) == 0  # not touched
    truth, found = Mean().lift(whole, INFO, KEY), Mean().lift_scaled(update, by, INFO, KEY)
    assert distance(found.value, truth.value) < 1e-6
    assert torch.equal(found.weight, truth.weight)
    assert torch.equal(found.count, truth.count)


def test_other_reducers_get_whole_updates() -> None:
    whole, update, by = sent(bound(ClipL2(0.5)))
    partials = Median().lift(whole, INFO, KEY), Median().lift_scaled(update, by, INFO, KEY)
    truth, found = (Median().finish(p, {}, KEY)[0] for p in partials)
    assert distance(found.value, truth.value) == 0


def test_only_the_last_layer_is_left_to_the_sum() -> None:
    whole, update, by = sent(bound(ClipL2(0.5), ClipL1(0.2)))
    assert float(tree.norm(tree.rows(update.value, 1))) == pytest.approx(0.5, rel=1e-5)
    assert distance(update.scaled(by).value, whole.value) == 0
    _, noisy, by = sent(bound(EqualWeights(), ClipL2(0.5), LocalGaussian(epsilon=1.0, delta=1e-5)))
    assert by == {}
    assert distance(noisy.value, VALUE) > 1


def test_a_clip_with_a_client_side_of_its_own_is_asked_for_it() -> None:
    @dataclass(frozen=True)
    class Half(ClipL2):
        def client(self, update: Update, state: Tree, own: Tree, key: torch.Tensor) -> tuple[Update, Tree]:
            return update._replace(value=tree.scale(update.value, 0.5)), own

    assert issubclass(Half, Scaling)
    whole, update, by = sent(bound(Half(0.5)))
    assert by == {}
    assert distance(whole.value, tree.scale(VALUE, 0.5)) == 0
    assert distance(update.value, whole.value) == 0
