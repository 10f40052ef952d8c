"""The step that a secure sum leaves: as fine as can be, and no sum leaves the modulus."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll import rng, tree
from atoll.core import Chain, Spec, Total, Update
from atoll.errors import SpecError
from atoll.transforms import FixedPointFor, SecureSum
from atoll.tree import Tree

BOUNDED = Spec(l2=1.0, equal_weights=True, cohort=10, size=100)


@given(st.integers(16, 40), st.integers(1, 200), st.integers(1, 10_000), st.floats(1e-6, 1e6), st.booleans())
def test_the_step_is_the_finest_power_of_two_that_fits(
    bits: int, clients: int, size: int, l2: float, wide: bool
) -> None:
    spec = Spec(l2=l2, equal_weights=True, cohort=clients, size=size)
    of = FixedPointFor(bits, 3 * l2 if wide else None)
    try:
        fixed, after = of.bind(spec)
    except SpecError as e:
        assert clients * (math.sqrt(size) + 1) >= 2 ** (bits - 1) - 1
        assert f"bits: {bits} leave no room" in str(e)  # noqa: PT017
        return
    SecureSum(bits).bind(after)  # refuses what could overflow
    assert math.log2(fixed.step).is_integer()
    half = (3 * l2 if wide else l2) / (fixed.step / 2) + math.sqrt(size)
    assert clients * half + 1 > 2 ** (bits - 1)


def test_the_largest_sum_there_can_be_is_read_rightly() -> None:
    """All clients at the bound, in the same number."""
    chain, _ = Chain((FixedPointFor(16), SecureSum(16))).bind(BOUNDED)
    state, own = chain.init({"w": torch.zeros(100)})
    for sign in (1.0, -1.0):
        update = Update({"w": torch.zeros(100).index_fill(0, torch.tensor(7), sign)}, torch.ones(()))
        rows = [chain.client(update, state, own, rng.key(i))[0].value for i in range(10)]
        total = Total({"w": sum(r["w"] for r in rows)}, torch.tensor(10.0), torch.tensor(10.0))
        read = chain.server(total, state, rng.key("server"))[0]
        assert read.value["w"][7] == pytest.approx(10 * sign, abs=1e-6)
        assert tree.norm(read.value) < 11


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (Spec(equal_weights=True, cohort=10, size=100), "needs bounded updates: put clip_l2 before it"),
        (Spec(l2=1.0, cohort=10, size=100), "needs equal client weights: put equal_weights before it"),
        (Spec(l2=1.0, equal_weights=True, size=100), "needs the same number of clients in every round"),
        (Spec(l2=1.0, equal_weights=True, cohort=10, size=100, noise=0.1), "discrete_gaussian or skellam"),
    ],
)
def test_a_sum_without_a_bound_is_refused(spec: Spec, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        FixedPointFor(32).bind(spec)


def test_a_range_below_the_bound_is_refused_and_nothing_is_clipped() -> None:
    with pytest.raises(SpecError, match=r"range: 0.5 is less than 1.*clip_l2 with max_norm = 0.5"):
        FixedPointFor(32, 0.5).bind(BOUNDED)


# After a local randomiser.

RANDOMISED = Spec(equal_weights=True, cohort=10, size=100, noise=0.5, randomised=1.0, unbounded_because="privunit")


@given(st.integers(10, 40), st.integers(1, 200), st.floats(1e-3, 1e3))
def test_numbers_that_are_cut_to_a_range_have_the_finest_step_that_fits(bits: int, clients: int, range: float) -> None:
    fixed, after = FixedPointFor(bits, range, takes_local_noise=True).bind(
        replace(RANDOMISED, cohort=clients, noise=1e6)
    )
    SecureSum(bits).bind(after)  # refuses what could overflow
    with pytest.raises(SpecError, match=f"needs {bits} bits and not {bits - 1}"):
        SecureSum(bits - 1).bind(after)
    assert math.log2(fixed.step).is_integer()
    assert clients * (range / (fixed.step / 2) + 1) + 1 > 2 ** (bits - 1)


def test_the_largest_sum_of_cut_numbers_is_read_rightly() -> None:
    """All numbers of all clients far beyond the range."""
    chain, _ = Chain((FixedPointFor(16, 2.0, takes_local_noise=True), SecureSum(16))).bind(RANDOMISED)
    state, own = chain.init({"w": torch.zeros(100)})
    for sign in (1.0, -1.0):
        update = Update({"w": torch.full((100,), 50.0 * sign)}, torch.ones(()))
        rows = [chain.client(update, state, own, rng.key(i))[0].value for i in range(10)]
        total, new = chain.server(summed(rows), state, rng.key("server"))
        read = total.value["w"]
        assert torch.allclose(read, torch.full((100,), 20.0 * sign), atol=10 * chain.transforms[0].step)
        assert total.value.keys() == {"w"}
        assert chain.diagnostics(new)["clamped"] == pytest.approx(1.0, abs=1e-3)  # of 16 bits, 2^-10 are a step


def summed(rows: list[Tree]) -> Total:
    clients = torch.tensor(float(len(rows)))
    return Total({name: sum(row[name] for row in rows) for name in rows[0]}, clients, clients)


@pytest.mark.parametrize("beyond", [0, 1, 30])
def test_the_share_of_cut_numbers_is_known_and_the_sum_is_that_without_it(beyond: int) -> None:
    """Client i has i x `beyond` numbers beyond the range, above and below."""
    chain, spec = Chain((FixedPointFor(32, 2.0, takes_local_noise=True), SecureSum(32))).bind(RANDOMISED)
    assert spec.size == 101
    state, own = chain.init({"w": torch.zeros(50), "b": torch.zeros(50)})
    vectors = [torch.where(torch.arange(100) < i * beyond, 3.0 * (-1.0) ** i, 1.5) for i in range(4)]
    updates = [Update({"w": x[:50], "b": x[50:]}, torch.ones(())) for x in vectors]
    rows = [chain.client(update, state, own, rng.key(i))[0].value for i, update in enumerate(updates)]
    total, new = chain.server(summed(rows), state, rng.key("server"))
    cut = sum(int((x.abs() > 2).sum()) for x in vectors) / 400
    assert chain.diagnostics(new)["clamped"] == pytest.approx(cut, abs=1e-7)
    plain = sum(x.clamp(-2, 2) for x in vectors)
    assert torch.allclose(torch.cat([total.value["w"], total.value["b"]]), plain, atol=4 * chain.transforms[0].step)


def test_a_round_to_which_nobody_came_cut_nothing() -> None:
    chain, _ = Chain((FixedPointFor(32, 2.0, takes_local_noise=True),)).bind(RANDOMISED)
    state, _ = chain.init({"w": torch.zeros(3)})
    nothing = Total({"w": torch.zeros(3), "clamped": torch.zeros(())}, torch.zeros(()), torch.zeros(()))
    assert chain.diagnostics(chain.server(nothing, state, rng.key(0))[1])["clamped"] == 0


def test_noise_of_every_clients_own_needs_a_range_and_one_is_named() -> None:
    with pytest.raises(SpecError, match=r"secure.fixed_point.range: is missing.*range = 7 }"):  # 1 + 12 x 0.5
        FixedPointFor(32, takes_local_noise=True).bind(RANDOMISED)


def test_noise_of_every_clients_own_is_refused_where_the_protocol_does_not_take_it() -> None:
    with pytest.raises(SpecError, match=r"goes with secure.protocol = 'shuffle'"):
        FixedPointFor(32, 7.0).bind(RANDOMISED)


def test_noise_on_a_sum_is_no_local_noise_whatever_the_protocol_takes() -> None:
    with pytest.raises(SpecError, match="discrete_gaussian or skellam"):
        FixedPointFor(32, 7.0, takes_local_noise=True).bind(replace(BOUNDED, noise=0.5))


def test_cut_numbers_without_room_for_a_step_are_refused() -> None:
    with pytest.raises(SpecError, match=r"bits: 8 leave no room for the sum of 100 clients, rounded at random"):
        FixedPointFor(8, 7.0, takes_local_noise=True).bind(replace(RANDOMISED, cohort=100))
