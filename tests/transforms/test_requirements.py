"""What a chain makes certain: sensitivities that nobody types in, and chains that cannot hold refused with advice."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from atoll import rng, tree
from atoll.core import Chain, Simulated, Spec, Total, Transform, Update
from atoll.errors import ConfigError, ConformanceError, SpecError
from atoll.privacy.events import (
    Approximate,
    Banded,
    DistributedDiscreteGaussian,
    DistributedSkellam,
    Gaussian,
    Laplace,
    NotPrivate,
    Pure,
    TreeAggregation,
)
from atoll.reducers import REDUCERS
from atoll.rng import dp
from atoll.testing import check_transform
from atoll.transforms import TRANSFORMS

RUN: dict[str, Any] = {"cohort": 10, "size": 100, "rounds": 40, "min_separation": 4}
EQUAL: list[Any] = ["equal_weights"]
CLIP: list[Any] = [*EQUAL, ("clip_l2", {"max_norm": 0.5})]
CLIP1: list[Any] = [*EQUAL, ("clip_l1", {"max_norm": 0.5})]
FIXED: list[Any] = [*CLIP, ("fixed_point", {"step": 0.01})]
NOISE = ("gaussian_noise", {"noise_multiplier": 2.0})
LAPLACE = ("laplace_noise", {"noise_multiplier": 2.0})
DISCRETE, SKELLAM = ("discrete_gaussian", {"noise_multiplier": 2.0}), ("skellam", {"noise_multiplier": 2.0})
SUM = ("secure_sum", {"bits": 24})
TOP = ("top_k", {"share": 0.5})
LOCAL, LOCAL1 = ("local_gaussian", {"epsilon": 1.0, "delta": 1e-5}), ("local_laplace", {"epsilon": 1.0})
UNIT = ("privunit", {"epsilon": 1.0})
BANDED = ("banded_noise", {"noise_multiplier": 2.0, "bands": 4})
ADAPTIVE = [*EQUAL, "adaptive_clip"]
NBAFL = {"max_norm": 0.5, "epsilon": 8.0, "delta": 1e-3, "examples": 50, "rounds": 20, "clients": 50}


def chain(*layers: Any) -> Chain:
    """Layers as a file names them."""
    pairs = [(x, {}) if isinstance(x, str) else x for x in layers]
    return Chain(tuple(TRANSFORMS[name](**options) for name, options in pairs))


def bound(*layers: Any, reducer: str = "mean", **run: Any) -> tuple[Chain, Spec]:
    return chain(*layers).bind(replace(REDUCERS[reducer]().spec(), **{**RUN, **run}))


REFUSED: list[tuple[list[Any], dict[str, Any], str]] = [
    # noise before clipping, or without
    ([*EQUAL, NOISE, ("clip_l2", {"max_norm": 0.5})], {}, "needs bounded updates: put clip_l2 before it"),
    ([*CLIP, LAPLACE], {}, "needs updates bounded in L1: put clip_l1 before it"),
    ([*EQUAL, BANDED], {}, "put clip_l2 before it"),
    ([*EQUAL, ("tree_noise", {"noise_multiplier": 1.0})], {}, "put clip_l2 before it"),
    ([*EQUAL, LOCAL], {}, "put clip_l2 before it"),
    ([*CLIP, LOCAL1], {}, "put clip_l1 before it"),
    ([*EQUAL, UNIT], {}, "put clip_l2 before it"),
    ([*EQUAL, ("fixed_point", {"step": 0.1})], {}, "put clip_l2 before it"),
    # unequal weights
    ([("clip_l2", {"max_norm": 0.5}), NOISE], {}, "put equal_weights before it"),
    ([("clip_l1", {"max_norm": 0.5}), LAPLACE], {}, "put equal_weights before it"),
    (["adaptive_clip"], {}, "put equal_weights before it"),
    ([("clip_l2", {"max_norm": 0.5}), ("fixed_point", {"step": 0.1})], {}, "put equal_weights before it"),
    ([("clip_l2", {"max_norm": 0.5}), LOCAL], {}, "put equal_weights before it"),
    ([("nbafl", NBAFL)], {}, "put equal_weights before it"),
    # reducers that look at every update
    ([*CLIP, NOISE], {"reducer": "median"}, "use reducer = 'mean'"),
    ([*CLIP1, LAPLACE], {"reducer": "trimmed_mean"}, "use reducer = 'mean'"),
    ([*CLIP, BANDED], {"reducer": "median"}, "use reducer = 'mean'"),
    (ADAPTIVE, {"reducer": "median"}, "use reducer = 'mean'"),
    ([*FIXED, SUM], {"reducer": "median"}, "shows the server nothing but a sum: use reducer = 'mean'"),
    ([*FIXED, DISCRETE], {"reducer": "median"}, "use reducer = 'mean'"),
    ([*CLIP, ("approximate_local", {"mechanism": "privunit", "epsilon": 1.0})], {"reducer": "median"}, "'mean'"),
    # the wrong kind of numbers
    ([*FIXED, SUM, NOISE], {}, "the sum is modular here: put it before that"),
    ([*FIXED, NOISE], {}, "put it before fixed_point, or use discrete_gaussian or skellam"),
    ([*FIXED, SUM, DISCRETE], {}, "put it before secure_sum"),
    ([*CLIP, DISCRETE], {}, "put fixed_point before it"),
    ([*CLIP, SKELLAM], {}, "put fixed_point before it"),
    ([*CLIP, SUM], {}, "put fixed_point before it"),
    ([*FIXED, ("clip_l2", {"max_norm": 0.1})], {}, "one of integers here: put it before fixed_point"),
    ([*FIXED, TOP], {}, "put it before fixed_point"),
    # error feedback after clipping
    ([*CLIP, TOP, NOISE], {}, "(top_k adds what it held back, after clipping): put clip_l2 before it"),
    ([*CLIP1, TOP, LAPLACE], {}, "(top_k adds what it held back, after clipping): put clip_l1 before it"),
    ([*CLIP, TOP, LOCAL], {}, "(top_k adds what it held back, after clipping)"),
    ([*CLIP, NOISE, TOP], {}, "top_k changes what the noise before it was measured for: put it before the noise"),
    # clipping, or anything else that moves the sum, after the noise
    ([*CLIP, NOISE, ("clip_l2", {"max_norm": 0.1})], {}, "clip_l2 changes what the noise before it was measured for"),
    ([*CLIP1, LAPLACE, ("clip_l1", {"max_norm": 0.1})], {}, "put it before the noise"),
    ([*CLIP, LOCAL, ("clip_l2", {"max_norm": 0.1})], {}, "put it before the noise"),
    ([*CLIP, BANDED, "adaptive_clip"], {}, "put it before the noise"),
    ([*CLIP, NOISE, ("fixed_point", {"step": 0.1}), SUM], {}, "put it before the noise"),
    # two noises
    ([*CLIP, NOISE, NOISE], {}, "gaussian_noise follows another noise. Use one mechanism"),
    ([*CLIP, LOCAL, NOISE], {}, "follows another noise"),
    ([*CLIP, NOISE, BANDED], {}, "follows another noise"),
    ([*FIXED, DISCRETE, SKELLAM], {}, "follows another noise"),
    ([*CLIP, NOISE, ("weak_dp", {"max_norm": 1.0})], {}, "put it before the noise"),
    # what must be known of the run
    ([*FIXED, DISCRETE], {"cohort": None}, "the same number of clients in every round: use cohort.name = 'fixed'"),
    ([*FIXED, SUM], {"cohort": None}, "use cohort.name = 'fixed'"),
    (FIXED, {"size": None}, "needs to know how many numbers an update has"),
    ([*CLIP, BANDED], {"rounds": None}, "needs to know its rounds"),
    ([*CLIP, BANDED], {"min_separation": 3}, "Use cohort.name = 'cyclic_poisson' or 'cyclic' with min_separation = 4"),
    ([*FIXED, ("secure_sum", {"bits": 10})], {}, "a sum may reach 600 steps, which needs 11 bits and not 10"),
    ([*FIXED, DISCRETE, ("secure_sum", {"bits": 11})], {}, "a sum may reach 2040 steps, which needs 12 bits"),
    ([*FIXED, ("secure_sum", {"bits": 48})], {"cohort": 50}, "Use bits = 47 or fewer"),
]  # fmt: skip


@pytest.mark.parametrize(("layers", "run", "advice"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_a_chain_that_cannot_hold_is_refused_with_advice(layers: list[Any], run: dict[str, Any], advice: str) -> None:
    with pytest.raises(SpecError) as refused:
        bound(*layers, **run)
    assert advice in str(refused.value)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (("clip_l2", {"max_norm": 0.0}), r"clip_l2\.max_norm: must be above 0 and finite \(got 0\.0\)"),
        (("clip_per_layer", {"max_norm": 0.0}), r"clip_per_layer\.max_norm: must be above 0"),
        (("clip_l1", {"max_norm": -1.0}), r"clip_l1\.max_norm: must be above 0"),
        (("clip_layers", {"max_norms": {"a": math.inf}}), r"clip_layers\.max_norms\.a: must be above 0 and finite"),
        (("clip_layers", {"max_norms": {}}), "is empty. Name groups of tensors"),
        (
            ("gaussian_noise", {"noise_multiplier": math.inf}),
            r"gaussian_noise\.noise_multiplier: must be at least 0 and finite",
        ),
        (("gaussian_noise", {"noise_multiplier": -1.0}), r"gaussian_noise\.noise_multiplier: must be at least 0"),
        (
            ("laplace_noise", {"noise_multiplier": math.nan}),
            r"laplace_noise: needs noise_multiplier, or epsilon and delta",
        ),
        (("banded_noise", {"noise_multiplier": math.inf, "bands": 2}), r"banded_noise\.noise_multiplier"),
        (("banded_noise", {"noise_multiplier": 1.0, "bands": 2, "min_separation": 4}), "is that of the cohort"),
        (("tree_noise", {"noise_multiplier": 1.0, "min_separation": 4}), "is that of the cohort"),
        (("local_gaussian", {"epsilon": 0.0, "delta": 1e-5}), r"local_gaussian\.epsilon: must be above 0"),
        (("local_gaussian", {"epsilon": 1.0, "delta": 1.0}), r"local_gaussian\.delta: must be above 0 and below 1"),
        (("nbafl", {**NBAFL, "delta": 2.0}), r"nbafl\.delta: must be above 0 and below 1"),
        (("fixed_point", {"step": 0.0}), r"fixed_point\.step: must be above 0"),
        (("adaptive_clip", {"count_share": 1.0}), r"adaptive_clip\.count_share: must be above 0 and below 1"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(layer: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bound(*CLIP, ("clip_l1", {"max_norm": 0.5}), layer)


def test_integer_noise_that_is_too_fine_to_draw_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Use a larger fixed_point\.step"):
        bound(*CLIP, ("fixed_point", {"step": 1e-6}), DISCRETE)


EVENTS: list[tuple[list[Any], Any]] = [
    ([*CLIP, NOISE], Gaussian(2.0)),
    ([*CLIP1, LAPLACE], Laplace(2.0)),
    ([*CLIP1, NOISE], Gaussian(2.0)),
    ([*ADAPTIVE, NOISE], Gaussian(2.0)),
    ([*FIXED, DISCRETE, SUM], DistributedDiscreteGaussian(2.0, l2=50.0 + 10.0, clients=10, dimension=100)),
    ([*FIXED, SKELLAM, SUM], DistributedSkellam(2.0, l2=60.0, l1=600.0)),
    ([*CLIP1, ("fixed_point", {"step": 0.01}), SKELLAM], DistributedSkellam(2.0, l2=60.0, l1=150.0)),
    ([*CLIP, LOCAL], Approximate(1.0, 1e-5)),
    ([*CLIP1, LOCAL1], Pure(1.0)),
    ([*CLIP, UNIT], Pure(1.0)),
    ([*CLIP, BANDED], Banded(2.0, bands=4, min_separation=4, rounds=40)),
    ([*CLIP, ("tree_noise", {"noise_multiplier": 2.0, "restart": 8})],
     TreeAggregation(2.0, rounds=40, min_separation=4, restart=8, pattern="cyclic")),
]  # fmt: skip


@pytest.mark.parametrize(("layers", "event"), EVENTS, ids=[repr(e) for _, e in EVENTS])
def test_a_mechanism_says_what_it_did(layers: list[Any], event: Any) -> None:
    made, spec = bound(*layers)
    assert made.events() == [event]
    assert all(layer.simulates() is None for layer in made.transforms)
    assert spec.noise is not None


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        ([*CLIP, ("gaussian_noise", {"noise_multiplier": 0.0})], "the noise multiplier is 0"),
        ([*FIXED, ("skellam", {"noise_multiplier": 0.0})], "the noise multiplier is 0"),
        ([("weak_dp", {"max_norm": 1.0})], "is not measured for privacy"),
        ([*CLIP, ("gaussian_noise", {"noise_multiplier": 1.0, "noise_cohort": 1000})], "Simulation only"),
        ([*CLIP, ("approximate_local", {"mechanism": "gaussian", "epsilon": 1.0})], "Simulation only"),
    ],
)
def test_what_has_no_guarantee_says_so(layers: list[Any], why: str) -> None:
    (event,) = bound(*layers)[0].events()
    assert isinstance(event, NotPrivate)
    assert why in event.why


def test_a_simulation_says_what_it_stands_for() -> None:
    simulated = {
        ("gaussian_noise", "l2"): ({"noise_multiplier": 1.5}, Gaussian(1.5)),
        ("laplace_noise", "l1"): ({"noise_multiplier": 1.5}, Laplace(1.5)),
        ("banded_noise", "l2"): ({"noise_multiplier": 1.5, "bands": 8, "min_separation": 9}, Banded(1.5, 8, 9, 40)),
        ("tree_noise", "l2"): (
            {"noise_multiplier": 1.5, "min_separation": 9},
            TreeAggregation(1.5, 40, 9, pattern="cyclic"),
        ),
    }
    for (name, _), (options, event) in simulated.items():
        made, _ = bound(*CLIP1, (name, {**options, "noise_cohort": 1000}))
        system = made.transforms[-1].simulates()
        assert system == Simulated(event, cohort=1000, min_separation=options.get("min_separation", 1))
        assert isinstance(made.transforms[-1].event(), NotPrivate)


def test_bounds_go_through_the_chain() -> None:
    assert bound(*CLIP1)[1].l2 == 0.5  # an update is no longer than its entries added up
    assert bound(*CLIP1, ("clip_l2", {"max_norm": 0.1}))[1].l1 == 0.5
    assert bound(*CLIP1, ("clip_l2", {"max_norm": 0.1}))[1].l2 == 0.1
    assert bound(*EQUAL, ("clip_layers", {"max_norms": {"a": 3.0, "rest": 4.0}}))[1].l2 == 5.0
    assert bound(*ADAPTIVE)[1].l2 == pytest.approx(0.99**-0.5)
    assert bound(*ADAPTIVE)[1].size == 101
    assert bound(*CLIP, NOISE)[1].noise == 1.0
    assert bound(*CLIP, TOP, ("clip_l2", {"max_norm": 2.0}))[1].l2 == 2.0


class Doubles(Transform):
    """Somebody's own layer, which says nothing about noise."""

    def server(self, total: Total, state: Any, key: Any) -> tuple[Total, Any]:
        return replace(total, value=tree.scale(total.value, 2.0)), state


class Listens(Transform):
    """Changes nothing, so it may stand anywhere."""


def test_a_stranger_may_not_change_the_sum_that_noise_was_measured_for() -> None:
    noisy = chain(*CLIP, NOISE).transforms
    with pytest.raises(SpecError, match="doubles changes what the noise before it was measured for"):
        Chain((*noisy, Doubles())).bind(Spec(**RUN))
    Chain((Doubles(), *noisy)).bind(Spec(**RUN))  # its server side comes after the noise
    Chain((*noisy, Listens())).bind(Spec(**RUN))


def test_a_part_that_a_layer_adds_is_known_to_those_after_it() -> None:
    made, _ = bound(*ADAPTIVE, BANDED)
    like = {"delta": {"w": torch.zeros(3)}, "buffers": {}}
    state, _ = made.init(like)
    assert state["2"]["past"].shape == (3, 4)  # three rounds, of three weights and one count
    update, _ = made.client(Update(like, torch.ones(())), state, {str(i): {} for i in range(3)}, rng.key(0))
    total = Total(update.value, torch.ones(()), torch.ones(()))
    assert set(made.server(total, state, rng.key(0))[0].value) == {"delta", "buffers"}


def test_clients_are_not_handed_the_noise_of_the_past() -> None:
    made, _ = bound(*ADAPTIVE, BANDED)
    state, _ = made.init({"delta": {"w": torch.zeros(3)}, "buffers": {}})
    assert state["2"].keys() == {"coefficients", "past", "signal"}
    seen = made.client_view(state)
    assert seen["2"] == {}
    assert torch.equal(seen["1"]["bound"], state["1"]["bound"])  # adaptive_clip's own, which clients clip to


class Lies(Transform):
    """Says that it does not draw, and does."""

    keyed = False

    def client(self, update: Update, state: Any, memory: Any, key: torch.Tensor) -> tuple[Update, Any]:
        return update._replace(value=dp.add_noise(update.value, key, dp.normal, 1.0)), memory


def test_a_layer_that_draws_must_say_so() -> None:
    with pytest.raises(ConformanceError, match="keyed = False, so any key gives the same update"):
        check_transform(Lies())
    assert not Chain((Lies(),)).draws()
