"""Whole numbers: rounding that is right on average, sums that wrap around, and noise from exact tables.

Keys are fixed. Laws are tested at p > 1e-6, means within five standard errors: false alarms in about a million keys.
"""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ive
from torch.func import vmap

from atoll import rng, tree
from atoll.core import Chain, Spec, Total, Update
from atoll.transforms import TRANSFORMS
from atoll.transforms.discrete_sampling import cumulative_table, probabilities, sample_integers
from atoll.transforms.integers import FixedPoint, SecureSum
from tests.support.sums import summed as stack_sum

KEY = rng.key("integers")


def chain(*layers: Any, clients: int = 6, size: int = 50) -> Chain:
    pairs = ["equal_weights", ("clip_l2", {"max_norm": 1.0}), *layers]
    built = [TRANSFORMS[x]() if isinstance(x, str) else TRANSFORMS[x[0]](**x[1]) for x in pairs]
    return Chain(tuple(built)).bind(Spec(cohort=clients, size=size))[0]


def summed(made: Chain, values: torch.Tensor, chunk: int = 100, key: torch.Tensor = KEY) -> Total:
    """(C, size) updates through clients, a sum in chunks, and the server."""
    state, memory = made.init({"w": values[0]})
    keys = torch.stack([rng.fold(key, c) for c in range(len(values))])

    def client(x: torch.Tensor, k: torch.Tensor) -> Update:
        return made.client(Update({"w": x}, torch.tensor(3.0)), state, memory, k)[0]

    parts = []
    for i in range(0, len(values), chunk):
        value, weight, *_ = vmap(client)(values[i : i + chunk], keys[i : i + chunk])
        parts.append(stack_sum(Update(value, weight)))
    total = parts[0]
    for part in parts[1:]:
        total = total.merge(part)
    return made.server(total, state, rng.key("server"))[0]


@given(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=20), st.floats(1e-4, 1.0), st.integers(0, 2**30))
def test_rounding_moves_a_number_by_less_than_a_step_and_keeps_the_bound(
    numbers: list[float], step: float, seed: int
) -> None:
    x = torch.tensor(numbers)
    length = max(1e-6, float(x.double().norm()))
    fixed, spec = FixedPoint(step).bind(
        Spec(l2=length, l1=float(x.double().abs().sum()), equal_weights=True, size=len(x))
    )
    sent, _ = fixed.client(Update({"w": x}, torch.ones(())), {}, {}, rng.key(seed))
    steps = sent.value["w"].numpy()
    assert (steps == np.round(steps)).all()
    assert (np.abs(steps - x.double().numpy() / step) < 1.0 + 1e-9).all()
    assert spec.l2 is not None
    assert spec.l1 is not None
    assert np.linalg.norm(steps) <= spec.l2 * (1 + 1e-9)
    assert np.abs(steps).sum() <= spec.l1 * (1 + 1e-9)


def test_rounding_is_right_on_average_and_exact_where_there_is_nothing_to_round() -> None:
    x = torch.full((40_000,), 0.37)
    sent, _ = FixedPoint(0.1).client(Update({"w": x}, torch.ones(())), {}, {}, KEY)
    values, counts = np.unique(sent.value["w"].numpy(), return_counts=True)
    assert values.tolist() == [3.0, 4.0]
    assert counts[1] / 40_000 == pytest.approx(0.7, abs=5 * (0.21 / 40_000) ** 0.5)
    whole = torch.tensor([-3.0, 0.0, 7.0])
    assert torch.equal(
        FixedPoint(0.5).client(Update({"w": whole}, torch.ones(())), {}, {}, KEY)[0].value["w"], whole.double() * 2
    )


@given(st.integers(4, 30), st.integers(1, 9), st.integers(0, 2**30))
def test_a_sum_that_fits_comes_through_residues_unchanged(bits: int, clients: int, seed: int) -> None:
    most = (2 ** (bits - 1) - 1) // clients
    x = np.random.default_rng(seed).integers(-most, most + 1, (clients, 5))
    secure = SecureSum(bits)
    sent = [
        secure.client(Update({"w": torch.tensor(r).double()}, torch.ones(())), {}, {}, KEY)[0].value["w"] for r in x
    ]
    assert all(((s >= 0) & (s < 2**bits)).all() for s in sent)
    total = Total({"w": torch.stack(sent).sum(0)}, torch.tensor(float(clients)), torch.tensor(float(clients)))
    assert secure.server(total, {}, KEY)[0].value["w"].tolist() == x.sum(0).tolist()


def test_a_sum_that_does_not_fit_wraps_around() -> None:
    total = Total({"w": torch.tensor([9.0, -9.0, 7.0, -8.0, 8.0]).double()}, torch.ones(()), torch.ones(()))
    assert SecureSum(4).server(total, {}, KEY)[0].value["w"].tolist() == [-7.0, 7.0, 7.0, -8.0, -8.0]


@pytest.mark.parametrize(
    "noise", [[], [("discrete_gaussian", {"noise_multiplier": 0.0})], [("skellam", {"noise_multiplier": 0.0})]]
)
def test_a_secure_sum_is_the_plain_sum_within_the_rounding(noise: list[Any]) -> None:
    x = rng.normal(KEY, (6, 50)) * 0.2
    plain = summed(chain(), x)
    secure = summed(chain(("fixed_point", {"step": 1e-4}), *noise, ("secure_sum", {"bits": 20})), x)
    assert secure.value["w"].dtype == torch.float32
    assert float((secure.value["w"] - plain.value["w"]).abs().max()) < 6 * 1e-4
    assert float(secure.weight) == 6.0


@pytest.mark.parametrize("law", ["discrete_gaussian", "skellam"])
def test_a_secure_noisy_sum_does_not_depend_on_chunks_at_all(law: str) -> None:
    x = rng.normal(KEY, (6, 50))
    made = chain(("fixed_point", {"step": 1e-3}), (law, {"noise_multiplier": 0.5}), ("secure_sum", {"bits": 20}))
    whole = summed(made, x)
    for chunk in (1, 2, 5):  # integers add up in any order
        assert tree.digest(summed(made, x, chunk).value) == tree.digest(whole.value)


LAWS = [("discrete_gaussian", s) for s in (0.4, 1.0, 7.5)] + [("skellam", s) for s in (0.4, 1.0, 7.5)]


@pytest.mark.parametrize(("law", "std"), LAWS)
def test_integers_have_exactly_their_law(law: Any, std: float) -> None:
    n = 400_000
    x = sample_integers(KEY, (n,), law, std).numpy()
    assert (x == np.round(x)).all()
    reach = int(np.abs(x).max()) + 1
    k = np.arange(-reach, reach + 1)
    weights = np.exp(-(k**2) / (2 * std**2)) if law == "discrete_gaussian" else ive(np.abs(k), std**2)
    wanted = (
        n * weights / (np.exp(-(np.arange(-500, 501) ** 2) / (2 * std**2)).sum() if law == "discrete_gaussian" else 1)
    )
    seen = np.array([(x == i).sum() for i in k])
    often = wanted > 10
    rest = [seen[~often].sum()], [wanted[~often].sum()]
    assert wanted.sum() == pytest.approx(n, rel=1e-4)
    chi = ((seen[often] - wanted[often]) ** 2 / wanted[often]).sum()
    assert stats.chi2(often.sum() - 1).sf(chi) > 1e-6
    assert abs(rest[0][0] - rest[1][0]) < 5 * (rest[1][0] + 4) ** 0.5 + 1


@pytest.mark.parametrize("std", [0.3, 2.0, 40.0])
def test_tables_agree_with_other_ways_to_work_them_out(std: float) -> None:
    k = np.arange(len(probabilities("skellam", std)))
    assert np.allclose(probabilities("skellam", std), ive(k, std**2), rtol=1e-9, atol=1e-300)
    weights = np.exp(-((np.arange(-1000, 1001)) ** 2) / (2 * std**2))
    gauss = probabilities("discrete_gaussian", std)
    assert np.allclose(
        gauss, np.exp(-(np.arange(len(gauss)) ** 2) / (2 * std**2)) / weights.sum(), rtol=1e-9, atol=1e-300
    )
    for law in ("discrete_gaussian", "skellam"):
        p = probabilities(law, std)  # type: ignore[arg-type]
        folded = np.cumsum([p[0], *(2 * x for x in p[1:])])
        found = cumulative_table(law, std).double().numpy() / 2.0**63  # type: ignore[arg-type]
        assert np.allclose(found, folded[: len(found)], atol=1e-12)
        assert folded[len(found)] == pytest.approx(1.0, abs=1e-15)  # beyond the last entry is the last number
        assert (np.diff(found) >= 0).all()


@pytest.mark.parametrize("law", ["discrete_gaussian", "skellam"])
@pytest.mark.parametrize("std", [0.01, 0.05, 0.1, 0.105, 0.11, 0.15, 0.2, 0.3])
def test_noise_of_a_small_part_of_a_step_is_mostly_none(law: Any, std: float) -> None:
    n = 20_000
    x = sample_integers(KEY, (n,), law, std).abs().numpy()
    k = np.arange(3)
    folded = np.exp(-(k**2) / (2 * std**2)) if law == "discrete_gaussian" else ive(k, std**2)
    folded = folded * np.array([1, 2, 2]) / (folded[0] + 2 * folded[1:].sum())
    for i in k:
        assert (x == i).mean() == pytest.approx(folded[i], abs=5 * (folded[i] * (1 - folded[i]) / n) ** 0.5 + 1e-4)


def test_skellam_has_the_variance_it_says() -> None:
    p = np.array(probabilities("skellam", 3.0))
    assert 2 * (p * np.arange(len(p)) ** 2).sum() == pytest.approx(9.0, rel=1e-12)


@pytest.mark.parametrize("law", ["discrete_gaussian", "skellam"])
def test_integer_noise_on_a_sum_is_measured_in_steps(law: str) -> None:
    """Deviation: noise_multiplier x (bound / step + sqrt(numbers)) steps; 50,000 numbers, five standard errors."""
    n, step = 50_000, 2e-3
    made = chain(
        ("fixed_point", {"step": step}), (law, {"noise_multiplier": 0.2}), ("secure_sum", {"bits": 22}), size=n
    )
    noise = summed(made, torch.zeros(6, n)).value["w"].double().numpy()
    wanted = 0.2 * (1.0 / step + n**0.5) * step
    assert noise.std() == pytest.approx(wanted, rel=5 / (2 * n) ** 0.5)
    assert abs(noise.mean()) < 5 * wanted / n**0.5


def test_integers_are_the_same_alone_and_stacked() -> None:
    keys = torch.stack([rng.key(i) for i in range(4)])
    stacked = vmap(lambda k: sample_integers(k, (7,), "skellam", 2.0))(keys)
    assert torch.equal(stacked, torch.stack([sample_integers(k, (7,), "skellam", 2.0) for k in keys]))
