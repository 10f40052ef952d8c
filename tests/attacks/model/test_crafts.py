"""What attackers send, against slow NumPy oracles that read the papers' formulas."""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll import rng
from atoll.attacks.model import (
    ATTACKS,
    Alie,
    AlieSearch,
    FangKrum,
    FangSearch,
    FangTrimmedMean,
    FreeRider,
    InnerProduct,
    InnerProductSearch,
    Mimic,
    MinMax,
    MinSum,
    RandomUpdate,
    SameValue,
    ScaledUpdate,
    SignFlip,
    ZeroUpdate,
)
from atoll.attacks.model.alie import z_max
from atoll.attacks.model.fang import krum_takes, lambda_bound
from atoll.attacks.model.min_distance import squared_distances
from atoll.core import AdversaryView, Attack

KEY = rng.key("craft")
Floats = NDArray[np.float64]
D = 9


def view(honest: int = 7, attackers: int = 3, reduce: Callable[[Tensor], Tensor] | None = None) -> AdversaryView:
    drift = rng.normal(rng.key("drift"), (D,))
    rows = rng.normal(rng.key("rows"), (honest + attackers, D)) + drift
    ids = torch.arange(attackers) * 2
    return AdversaryView(ids, rows[:attackers], rows[attackers:], honest + attackers, reduce)


def blind(seen: AdversaryView) -> AdversaryView:
    return AdversaryView(seen.ids, seen.own, seen.honest[:0], seen.cohort)


def crafted(attack: Attack, seen: AdversaryView, state: Any = None) -> Floats:
    state = attack.init(D) if state is None else state
    rows, _ = attack.craft(seen, state, KEY)
    assert rows.shape == seen.own.shape
    return np.asarray(rows.double())


def of(rows: Tensor) -> Floats:
    return np.asarray(rows.double())


def test_naive_updates_are_their_formulas() -> None:
    seen = view()
    own = of(seen.own)
    assert np.array_equal(crafted(ZeroUpdate(), seen), 0 * own)
    assert np.allclose(crafted(SignFlip(factor=2.5), seen), -2.5 * own)
    assert np.allclose(crafted(ScaledUpdate(factor=7.0), seen), 7.0 * own)
    assert np.array_equal(crafted(SameValue(value=-3.0), seen), np.full_like(own, -3.0))


def test_a_factor_of_one_is_honest() -> None:
    seen = view()
    assert np.array_equal(crafted(ScaledUpdate(factor=1.0), seen), of(seen.own))


def test_noise_is_normal_scaled_and_belongs_to_the_client() -> None:
    own = torch.zeros(2, 20_000)
    noise = crafted(RandomUpdate(scale=3.0), AdversaryView(torch.tensor([5, 9]), own, own[:0], 4))
    assert abs(noise.mean()) < 0.1
    assert abs(noise.std() - 3.0) < 0.05
    alone = crafted(RandomUpdate(scale=3.0), AdversaryView(torch.tensor([9]), own[:1], own[:0], 4))
    assert np.array_equal(alone[0], noise[1])
    assert not np.array_equal(noise[0], noise[1])


def test_inner_product_is_minus_epsilon_times_the_mean_it_sees() -> None:
    seen = view()
    assert np.allclose(crafted(InnerProduct(epsilon=0.7), seen), -0.7 * of(seen.honest).mean(0), atol=1e-6)
    mine = InnerProduct(epsilon=0.7, sees="colluders")
    assert np.allclose(crafted(mine, blind(seen)), -0.7 * of(seen.own).mean(0), atol=1e-6)


@pytest.mark.parametrize(("n", "m"), [(50, 24), (25, 5), (10, 4), (60, 18)])
def test_z_max_is_the_papers_quantile(n: int, m: int) -> None:
    s = n // 2 + 1 - m
    assert z_max(n, m) == pytest.approx(NormalDist().inv_cdf((n - m - s) / (n - m)))


def test_z_max_is_no_number_to_be_afraid_of_at_the_edges() -> None:
    assert z_max(3, 3) == 0.0
    assert z_max(2, 1) == 0.0
    assert 0 < z_max(10, 6) < 10  # a majority need not hide


def test_alie_is_the_mean_less_z_deviations() -> None:
    seen = view(honest=6, attackers=4)
    own = of(seen.own)
    assert np.allclose(crafted(Alie(), blind(seen)), own.mean(0) - z_max(10, 4) * own.std(0), atol=1e-5)
    honest = of(seen.honest)
    assert np.allclose(crafted(Alie(z=1.5, sees="everybody"), seen), honest.mean(0) - 1.5 * honest.std(0), atol=1e-5)
    assert np.allclose(crafted(Alie(z=0.0), blind(seen)), own.mean(0), atol=1e-6)


def direction(name: str, honest: Floats) -> Floats:
    mean: Floats = honest.mean(0)
    p: Floats = {"unit": -mean / np.linalg.norm(mean), "sign": -np.sign(mean), "deviation": -honest.std(0)}[name]
    return p


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unit", "sign", "deviation"])
def test_min_max_goes_as_far_as_the_farthest_pair_and_no_farther(name: Any) -> None:
    seen = view()
    honest = of(seen.honest)
    limit = max(np.linalg.norm(a - b) for a in honest for b in honest)
    p, mean = direction(name, honest), honest.mean(0)
    grid = [g for g in np.linspace(0, 30, 300_001) if ((mean + g * p - honest) ** 2).sum(1).max() <= limit**2]
    assert np.allclose(crafted(MinMax(direction=name), seen), mean + grid[-1] * p, atol=3e-4)


@pytest.mark.parametrize("name", ["unit", "sign", "deviation"])
def test_min_sum_ends_where_its_quadratic_does(name: Any) -> None:
    seen = view()
    honest = of(seen.honest)
    limit = max(((a - honest) ** 2).sum() for a in honest)
    p, mean = direction(name, honest), honest.mean(0)
    gamma = math.sqrt((limit - ((honest - mean) ** 2).sum()) / (len(honest) * (p @ p)))
    assert np.allclose(crafted(MinSum(direction=name), seen), mean + gamma * p, atol=1e-4)


def test_distances_of_updates_that_are_all_alike_leave_the_mean() -> None:
    same = torch.ones(5, D)
    seen = AdversaryView(torch.tensor([0]), same[:1], same, 6)
    for attack in (MinMax(), MinSum()):
        assert np.allclose(crafted(attack, seen), 1.0)


def test_fang_trimmed_mean_lies_beyond_every_honest_value() -> None:
    seen = view()
    honest, rows = of(seen.honest), crafted(FangTrimmedMean(), view())
    for j in range(D):
        low, high, rises = honest[:, j].min(), honest[:, j].max(), honest[:, j].mean() > 0
        ends = (low / 2 if low > 0 else low * 2, low) if rises else (high, high * 2 if high > 0 else high / 2)
        assert ((rows[:, j] >= ends[0] - 1e-6) & (rows[:, j] <= ends[1] + 1e-6)).all()


def test_fang_trimmed_mean_with_partial_knowledge_is_three_to_four_deviations_out() -> None:
    seen = view(attackers=5)
    own, rows = of(seen.own), crafted(FangTrimmedMean(sees="colluders"), blind(seen))
    away = -np.sign(own.mean(0)) * (rows - own.mean(0)) / own.std(0)
    assert (away >= 3 - 1e-4).all()
    assert (away <= 4 + 1e-4).all()


def krum_choice(updates: Floats, byzantine: int) -> int:
    n = len(updates)
    scores = []
    for i in range(n):
        others = sorted(float(((updates[i] - updates[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(others[: n - byzantine - 2]))
    return int(np.argmin(scores))


def test_fangs_bound_has_the_papers_denominator() -> None:
    """Theorem 1: (m - 2c - 1) d below the sum of the m - c - 2 least squared distances."""
    seen = view(honest=8, attackers=3)
    honest, n, c = of(seen.honest), 11, 3
    sums = []
    for a in honest:
        others = sorted(((a - b) ** 2).sum() for b in honest)
        sums.append(sum(others[1 : 1 + n - c - 2]))
    want = math.sqrt(min(sums) / ((n - 2 * c - 1) * D)) + max(np.linalg.norm(a) for a in honest) / math.sqrt(D)
    rows = seen.honest.double()
    assert lambda_bound(squared_distances(rows), (rows**2).sum(1), c, D) == pytest.approx(want)


@pytest.mark.parametrize(("honest", "attackers"), [(8, 3), (12, 5), (5, 1)])
def test_krum_takes_what_fang_sends_and_nothing_twice_as_long(honest: int, attackers: int) -> None:
    seen = view(honest, attackers)
    rows = crafted(FangKrum(), seen)
    value = abs(rows[0, 0])
    assert np.allclose(rows, -value * np.sign(of(seen.honest).mean(0)))
    if value >= 1e-5:
        assert krum_choice(np.concatenate([of(seen.honest), rows]), attackers) >= honest
    norms = (seen.honest.double() ** 2).sum(1)
    start = lambda_bound(squared_distances(seen.honest.double()), norms, attackers, D)
    if value < start * 0.99:
        assert krum_choice(np.concatenate([of(seen.honest), 2 * rows]), attackers) < honest


def test_krum_from_distances_is_krum_from_updates() -> None:
    agreed = set()
    for scale in (0.01, 0.1, 0.3, 1.0, 3.0):
        seen = view(honest=8, attackers=4)
        row = -scale * seen.honest.double().mean(0).sign()
        crafted_distances = ((seen.honest.double() - row) ** 2).sum(1)
        takes = krum_takes(squared_distances(seen.honest.double()), crafted_distances, 4)
        assert takes == (krum_choice(np.concatenate([of(seen.honest), np.tile(of(row), (4, 1))]), 4) >= 8)
        agreed.add(takes)
    assert agreed == {True, False}


def test_mimic_sends_an_honest_update_the_one_farthest_along_the_main_axis() -> None:
    line = torch.outer(torch.tensor([-1.0, 0.2, 0.1, 4.0, -0.5]), torch.eye(D)[2])
    honest = line + 0.01 * rng.normal(rng.key("jitter"), (5, D))
    seen = AdversaryView(torch.tensor([0, 1]), torch.zeros(2, D), honest, 7)
    state = Mimic().init(D)
    for _ in range(3):
        rows, state = Mimic().craft(seen, state, KEY)
    assert torch.equal(rows, honest[3].expand(2, D))
    cov = of(honest - honest.mean(0)).T @ of(honest - honest.mean(0))
    assert abs(of(state["axis"]) @ np.linalg.eigh(cov)[1][:, -1]) == pytest.approx(1.0, abs=1e-4)


def test_a_plain_free_rider_sends_the_model_back() -> None:
    assert np.array_equal(crafted(FreeRider(), view()), np.zeros((3, D)))


def test_a_disguised_free_rider_adds_noise_that_fades_as_the_model_does() -> None:
    rider = FreeRider(noise=2.0, decay=1.0)
    seen = AdversaryView(torch.tensor([3]), torch.zeros(1, 20_000), torch.zeros(0, 20_000), 5)
    change = torch.linspace(-1, 1, 20_000)
    state = rider.observe(change, rider.init(20_000))
    one = crafted(rider, seen, state)
    assert one.std() == pytest.approx(2.0 * float(change.std()), rel=0.05)
    for _ in range(3):
        state = rider.observe(change, state)
    assert crafted(rider, seen, state).std() == pytest.approx(one.std() / 4, rel=0.05)
    again = crafted(FreeRider(replay=True), seen, state)
    assert np.allclose(again[0], of(change))


def median_of(seen: AdversaryView) -> Callable[[Tensor], Tensor]:
    return lambda rows: torch.quantile(torch.cat([rows, seen.honest]), 0.5, dim=0)


@pytest.mark.parametrize(
    ("searching", "fixed"),
    [
        (AlieSearch(evaluations=30), lambda z: Alie(z=z, sees="everybody")),
        (InnerProductSearch(evaluations=30), lambda e: InnerProduct(epsilon=e)),
    ],
)
def test_an_attack_that_knows_the_defence_is_no_weaker_than_any_fixed_one(
    searching: Attack, fixed: Callable[[float], Attack]
) -> None:
    plain = view(honest=8, attackers=5)
    reduce = median_of(plain)
    seen = AdversaryView(plain.ids, plain.own, plain.honest, plain.cohort, reduce)

    def damage(rows: Floats) -> float:
        return float((reduce(torch.from_numpy(rows).float()) - plain.honest.mean(0)).norm())

    best = damage(crafted(searching, seen))
    assert best >= 0.98 * max(damage(crafted(fixed(x), plain)) for x in (0.1, 0.3, 0.5, 1.0, 1.5, 3.0, 10.0))


def test_fang_against_any_reducer_moves_it_against_the_mean() -> None:
    plain = view(honest=8, attackers=5)
    reduce = median_of(plain)
    seen = AdversaryView(plain.ids, plain.own, plain.honest, plain.cohort, reduce)
    rows = torch.from_numpy(crafted(FangSearch(), seen)).float()
    sign, mean = plain.honest.mean(0).sign(), plain.honest.mean(0)
    assert float(sign @ (mean - reduce(rows))) > float(sign @ (mean - reduce(plain.own)))
    assert float(sign @ (mean - reduce(rows))) >= float(sign @ (mean - reduce(0.5 * rows))) - 1e-6


def test_every_attack_says_in_its_first_line_what_it_knows() -> None:
    from atoll.core import KNOWS

    for name, builder in ATTACKS.items():
        first = (builder.__doc__ or "").partition("\n")[0]
        assert first.endswith(f"Knows {KNOWS[builder().knows]}."), name
