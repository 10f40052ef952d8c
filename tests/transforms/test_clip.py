"""Clipping: bounds that hold for any update, and one that finds itself."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import vmap

from atoll import rng, tree
from atoll.core import Chain, Spec, Total, Transform, Update, extract, inject
from atoll.errors import ConfigError
from atoll.transforms.adaptive import AdaptiveClip
from atoll.transforms.clip import ClipL1, ClipL2, ClipLayers, ClipPerLayer, l2_norm
from atoll.transforms.noise import GaussianNoise
from atoll.transforms.weights import EqualWeights
from atoll.tree import Tree
from tests.support.sums import summed

KEY = rng.key("clip")
numbers = st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=6)
bounds = st.floats(1e-3, 1e3)


def update(a: list[float], b: list[float]) -> Update:
    return Update({"delta": {"a": torch.tensor(a), "b": torch.tensor(b)}, "buffers": {}}, torch.ones(()))


def sent(transform: Transform, given: Update, state: Tree | None = None) -> Tree:
    return transform.client(given, state or {}, {}, KEY)[0].value


def flat(value: Tree) -> np.ndarray:
    return np.concatenate([x.double().flatten().numpy() for x in tree.leaves(value)])


@given(numbers, numbers, bounds)
def test_no_update_is_longer_than_its_bound_and_none_is_turned(a: list[float], b: list[float], bound: float) -> None:
    u = update(a, b)
    x = flat(u.value)
    for transform, norm in ((ClipL2(bound), 2), (ClipL1(bound), 1)):
        y = flat(sent(transform, u))
        assert np.linalg.norm(y, norm) <= bound
        wanted = x * min(1.0, bound / max(np.linalg.norm(x, norm), 1e-30))
        assert np.allclose(y, wanted, rtol=1e-5, atol=1e-30)


@given(numbers, numbers, bounds)
def test_every_layer_keeps_its_share_of_the_bound(a: list[float], b: list[float], bound: float) -> None:
    value = sent(ClipPerLayer(bound), update(a, b))
    for path, x in (("a", a), ("b", b)):
        y, size = value["delta"][path].double().numpy(), float(np.linalg.norm(x))
        assert np.allclose(y, np.array(x) * min(1.0, bound / 2**0.5 / max(size, 1e-30)), rtol=1e-5, atol=1e-30)
    assert np.linalg.norm(flat(value)) <= bound
    value = sent(ClipPerLayer(bound, "l1"), update(a, b))
    for path, x in (("a", a), ("b", b)):
        y, size = value["delta"][path].double().numpy(), float(np.abs(x).sum())
        assert np.allclose(y, np.array(x) * min(1.0, bound / 2 / max(size, 1e-30)), rtol=1e-5, atol=1e-30)
    assert np.abs(flat(value)).sum() <= bound


def test_groups_of_layers_have_bounds_of_their_own() -> None:
    value = {
        "delta": {"fc1.weight": torch.tensor([3.0]), "fc1.bias": torch.tensor([4.0]), "fc10.bias": torch.tensor([6.0])},
        "control": {"out": torch.tensor([8.0, 6.0])},
    }
    clip = ClipLayers({"fc1": 1.0, "fc10": 2.0, "rest": 0.5})
    clip.init(value)
    found = sent(clip, Update(value, torch.ones(())))
    assert torch.allclose(found["delta"]["fc1.weight"], torch.tensor([0.6]))
    assert torch.allclose(found["delta"]["fc1.bias"], torch.tensor([0.8]))
    assert torch.allclose(found["delta"]["fc10.bias"], torch.tensor([2.0]))  # the longer name
    assert torch.allclose(found["control"]["out"], torch.tensor([0.4, 0.3]))
    sums = sent(ClipLayers({"fc1": 1.3, "rest": 0.7}, "l1"), Update(value, torch.ones(())))
    assert torch.allclose(sums["delta"]["fc1.bias"], torch.tensor([0.4]))  # a tenth: 3 + 4 + 6 came in
    assert torch.allclose(sums["control"]["out"], torch.tensor([0.4, 0.3]))  # a twentieth of 8 + 6


def test_layers_clipped_in_l1_bound_the_whole_for_laplace_noise() -> None:
    for clip, whole in ((ClipPerLayer(0.5, "l1"), 0.5), (ClipLayers({"fc1": 0.5, "rest": 0.25}, "l1"), 0.75)):
        spec = clip.bind(Spec())[1]
        assert (spec.l1, spec.l2) == (whole, whole)
    assert ClipPerLayer(0.5).bind(Spec())[1].l1 is None


def test_names_that_no_tensor_has_are_refused() -> None:
    like = {"delta": {"fc1.weight": torch.zeros(1)}}
    with pytest.raises(ConfigError, match=r"no tensor is called 'conv'\. There are delta/fc1\.weight"):
        ClipLayers({"conv": 1.0, "rest": 1.0}).init(like)
    with pytest.raises(ConfigError, match=r"'delta/fc1\.weight' has no bound\. Add one for it, or one for 'rest'"):
        ClipLayers({"conv": 1.0}).init(like)


# ------------------------------------------------------------------------------------------------- a bound that moves


def adaptive(noise_multiplier: float, **options: float) -> Chain:
    layers = (EqualWeights(), AdaptiveClip(**options), GaussianNoise(noise_multiplier))
    return Chain(layers).bind(Spec())[0]


def rounds(chain: Chain, norms: list[list[float]]) -> tuple[list[float], list[Tree]]:
    """The bound after each round, and what the server got, for updates of these lengths along one axis."""
    state, memory = chain.init({"w": torch.zeros(2)})
    path, totals = [], []
    for t, lengths in enumerate(norms):
        now = state

        def client(n: torch.Tensor, now: Tree = now) -> Update:
            given = Update({"w": torch.stack([n, torch.zeros(())])}, torch.tensor(7.0))
            return chain.client(given, now, memory, KEY)[0]

        value, weight, *_ = vmap(client)(torch.tensor(lengths))
        out, state = chain.server(summed(Update(value, weight)), state, rng.key(t))
        path.append(float(state["1"]["bound"]))
        totals.append(out.value)
    return path, totals


def test_the_bound_follows_the_rule_of_the_paper() -> None:
    lengths = np.random.default_rng(0).lognormal(0.0, 1.0, (30, 8))
    path, totals = rounds(adaptive(0.0, initial_max_norm=0.3, quantile=0.7, rate=0.4), lengths.tolist())
    bound = 0.3
    for row, got, total in zip(lengths, path, totals, strict=True):
        assert float(total["w"][0]) == pytest.approx(np.minimum(row, bound).sum(), rel=1e-5)
        bound *= np.exp(-0.4 * ((row <= bound).mean() - 0.7))
        assert got == pytest.approx(bound, rel=1e-4)


def test_the_bound_reaches_the_quantile_and_a_rate_of_zero_leaves_it_alone() -> None:
    lengths = np.random.default_rng(1).uniform(0.0, 10.0, (80, 40)).tolist()
    path, _ = rounds(adaptive(0.0, initial_max_norm=0.1, quantile=0.8, rate=0.2), lengths)
    assert np.mean(path[-40:]) == pytest.approx(8.0, abs=0.5)
    assert rounds(adaptive(0.0, initial_max_norm=0.1, rate=0.0), lengths[:5])[0] == pytest.approx([0.1] * 5)


@pytest.mark.parametrize("share", [0.01, 0.3])
def test_noise_is_split_between_update_and_count_as_the_theorem_says(share: float) -> None:
    """2,000 draws of a variance: five standard errors are 16 %; a false alarm in a million keys."""
    z, bound = 1.3, 0.25
    chain = adaptive(z, initial_max_norm=bound, count_share=share, rate=1.0)
    state, memory = chain.init({"w": torch.zeros(1)})
    one, _ = chain.client(Update({"w": torch.zeros(1)}, torch.ones(())), state, memory, KEY)
    total = Total(one.value, torch.ones(()), torch.ones(()))

    def server(k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, new = chain.server(total, state, rng.fold(KEY, k))
        return out.value["w"][0], new["1"]["bound"]

    update_noise, moved = (x.double().numpy() for x in vmap(server)(torch.arange(2_000)))
    count_noise = 0.5 - np.log(moved / bound) - 1.0  # of the share of ONE client, which is within
    z_update, sigma_count = np.std(update_noise) / bound, np.std(count_noise)
    assert z_update == pytest.approx(z / (1 - share) ** 0.5, rel=0.08)
    assert sigma_count == pytest.approx(z / (2 * share**0.5), rel=0.08)
    exact = (z**-2 - (2 * (z / (2 * share**0.5))) ** -2) ** -0.5
    assert z / (1 - share) ** 0.5 == pytest.approx(exact)
    assert abs(np.corrcoef(update_noise, count_noise)[0, 1]) < 5 / 2_000**0.5


def test_noise_follows_the_bound_of_the_round() -> None:
    chain = adaptive(2.0, rate=0.0)
    state, _ = chain.init({"w": torch.zeros(20_000)})
    total = Total({"w": torch.zeros(20_000), "within": torch.zeros(())}, torch.ones(()), torch.ones(()))
    for bound in (0.1, 10.0):
        now = {**state, "1": {"bound": torch.tensor(bound)}}
        noise = chain.server(total, now, KEY)[0].value["w"]
        assert float(noise.std()) == pytest.approx(2.0 / 0.99**0.5 * bound, rel=5 / 40_000**0.5)


@given(
    st.one_of(st.just(0.0), st.floats(-40, 20).map(lambda e: 10.0**e)),
    st.one_of(st.just(0.0), st.floats(-44, 38).map(lambda e: 10.0**e)),
    st.integers(1, 300),
    st.sampled_from([0.01, 0.5, 0.999, 0.99999]),
)
def test_what_is_sent_is_within_its_sensitivity_for_any_bound_and_update(
    bound: float, size: float, n: int, share: float
) -> None:
    spec = Spec(equal_weights=True)
    clip, spec = AdaptiveClip(initial_max_norm=1.0, count_share=share).bind(spec)
    clip = inject(clip, extract(clip))  # as an engine hands it over
    given = Update({"w": size * rng.normal(rng.key(n), (n,)).clamp(-3, 3)}, torch.ones(()))
    value, state = sent(clip, given, {"bound": torch.tensor(bound)}), {"bound": torch.tensor(bound)}
    assert spec.l2 is not None
    assert np.linalg.norm(flat(value)) <= spec.l2  # false where it is no number
    total, moved = clip.server(Total(value, torch.ones(()), torch.ones(())), state, KEY)
    assert np.isfinite(flat(total.value)).all()
    assert 0 < float(moved["bound"]) < np.inf


@given(st.integers(1, 200_000), st.integers(0, 99), st.floats(1e-3, 1e3))
def test_no_update_is_longer_than_its_bound_after_rounding(n: int, seed: int, bound: float) -> None:
    g = torch.Generator().manual_seed(seed)
    value = {"a": torch.randn(n, generator=g) * 10.0 ** torch.randint(-3, 4, (n,), generator=g), "b": torch.ones(3)}
    assert float(l2_norm(value)) == pytest.approx(float(tree.norm(value)), rel=2e-6)
    clipped, _ = ClipL2(bound).client(Update(value, torch.ones(())), {}, {}, rng.key(0))
    assert float(tree.dot(clipped.value, clipped.value)) ** 0.5 <= bound
