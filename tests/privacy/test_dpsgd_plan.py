"""What DP-SGD inside clients costs: against closed forms, the library by itself, and counts of what plans really do."""

import doctest
import math
import re
import tomllib
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from atoll import rng
from atoll.data import Partition, Population
from atoll.experiment import Experiment
from atoll.privacy import Analytic, Composed, DpSgdPlan, Gaussian, Rdp, Sampled, flatten, gaussian_epsilon
from atoll.privacy.dpsgd_plan import BEST, Batches
from tests.support.marks import slow, slow_among
from tests.support.paths import ROOT
from tests.tasks.test_dp_sgd import LISTS, set_up

DELTA = 1e-4


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Of two normal distributions whose means are mu deviations apart (Dong, Roth and Su, 2019)."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize(("noise", "rounds", "epochs"), [(1.0, 1, 1), (4.0, 10, 3), (20.0, 50, 5)])
def test_shuffled_epochs_cost_one_gaussian_each(noise: float, rounds: int, epochs: int) -> None:
    plan = DpSgdPlan((64, 100, 7), batch=32, epochs=epochs)
    epsilon, _ = plan.worst(noise, rounds, DELTA)
    assert gaussian_delta(math.sqrt(rounds * epochs) / noise, epsilon) == pytest.approx(DELTA, rel=1e-6)
    assert plan.bound(noise, rounds, DELTA) == epsilon


def test_poisson_batches_cost_what_the_library_says_of_them() -> None:
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    plan = DpSgdPlan((320,), batch=32, epochs=2, sampling="poisson")
    whole = PLDAccountant().compose(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.5)), 2 * 10 * 5)
    assert plan.worst(1.5, 5, DELTA)[0] == pytest.approx(whole.get_epsilon(DELTA), rel=1e-2)


def test_fixed_batches_cost_what_the_library_says_of_twice_the_sensitivity() -> None:
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    plan = DpSgdPlan((320,), batch=32, epochs=2, sampling="fixed")
    one = dp.SampledWithoutReplacementDpEvent(320, 32, dp.GaussianDpEvent(3.0))
    whole = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE).compose(one, 2 * 10 * 5)
    assert plan.worst(6.0, 5, DELTA)[0] == pytest.approx(whole.get_epsilon(DELTA), rel=5e-2)


@pytest.mark.parametrize(("noise", "epochs", "published"), [(1.3, 20, 1.34), (0.7, 70, 8.68)])
def test_the_moments_accountant_on_mnist(noise: float, epochs: int, published: float) -> None:
    """Bu, Dong, Long and Su (2020), figure 4: one client with 60,000 examples. Our conversion is newer and tighter."""
    plan = DpSgdPlan((60_000,), batch=256, epochs=epochs, sampling="poisson")
    assert 0.75 * published < plan.bound(noise, 1, 1e-5) < published
    assert plan.worst(noise, 1, 1e-5)[0] < plan.bound(noise, 1, 1e-5)


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    batch=st.integers(0, 9),
    epochs=st.integers(1, 3),
    most=st.none() | st.integers(1, 7),
)
def test_no_example_is_seen_more_often_than_is_accounted(
    sizes: list[int], batch: int, epochs: int, most: int | None
) -> None:
    offsets = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()])
    population = Population(Partition(offsets, torch.arange(int(offsets[-1]))), batch, epochs, True, most)
    plan = DpSgdPlan(tuple(sizes), batch, epochs, most)
    cohort = population.cohort(torch.arange(len(sizes)), rng.key(0))
    for c, n in enumerate(sizes):
        steps = int(cohort.steps[c])
        assert plan.steps(n) == steps
        seen = torch.cat([cohort.plan[c, s, : int(cohort.count[c, s])] for s in range(steps)])
        assert int(seen.unique(return_counts=True)[1].max()) == plan.epochs_begun(n)


@pytest.mark.parametrize("sampling", ["shuffled", "poisson", "fixed"])
def test_the_worst_client_is_the_worst_of_all_one_by_one(sampling: Any) -> None:
    plan = DpSgdPlan((5, 20, 33, 64, 65, 150), batch=32, epochs=2, max_steps=3, sampling=sampling)
    each = {n: BEST[sampling].epsilon(plan.event(6.0, 4, n), DELTA) for n in plan.sizes}
    epsilon, n = plan.worst(6.0, 4, DELTA)
    assert epsilon == pytest.approx(max(each.values()), rel=1e-9)
    assert each[n or 0] == pytest.approx(epsilon, rel=1e-9)
    assert plan.bound(6.0, 4, DELTA) >= epsilon * (1 - 1e-9)


@pytest.mark.parametrize(
    ("sampling", "accountant"),
    [("shuffled", None), ("poisson", Rdp()), slow("fixed", Rdp())],
)
def test_the_noise_found_keeps_the_budget_and_a_little_less_does_not(sampling: Any, accountant: Any) -> None:
    plan = DpSgdPlan((33, 64), batch=32, sampling=sampling)
    noise = plan.noise(2.0, DELTA, 3, accountant)
    assert plan.worst(noise, 3, DELTA, accountant)[0] <= 2.0
    assert plan.worst(noise * 0.99, 3, DELTA, accountant)[0] > 2.0


def test_more_rounds_cost_more_and_none_cost_nothing() -> None:
    plan = DpSgdPlan((100,), batch=10, sampling="poisson")
    spent = [plan.bound(1.0, r, DELTA) for r in range(5)]
    assert spent[0] == 0
    assert spent == sorted(spent)
    assert plan.worst(1.0, 0, DELTA) == (0.0, 100)


def test_a_client_that_waits_for_its_turn_is_counted_only_then() -> None:
    waits, never = (DpSgdPlan((50,), batch=10, min_separation=s) for s in (4, 1))
    assert waits.worst(2.0, 9, DELTA) == never.worst(2.0, 3, DELTA)


def test_a_whole_client_is_never_amplified() -> None:
    for batch in (0, 50, 80):
        costs = {s: DpSgdPlan((50,), batch, 2, sampling=s).event(1.0, 3, 50) for s in ("shuffled", "poisson")}  # type: ignore[arg-type]
        for event in costs.values():
            assert flatten(event).terms[0].rate is None
            assert Analytic().epsilon(event, DELTA) == pytest.approx(gaussian_epsilon(1 / 6**0.5, DELTA), rel=1e-9)


def test_nobody_has_anything_to_lose_where_there_is_no_example() -> None:
    assert DpSgdPlan((0,), batch=4).worst(1.0, 3, DELTA) == (0.0, None)


# In a run


def test_a_run_says_what_it_promises() -> None:
    privacy = {"noise_multiplier": None, "epsilon": 8.0, "delta": 1e-3}
    private = set_up(rounds=4, local={"epochs": 2}, privacy=privacy).example_privacy
    assert private is not None
    found = private.block(4)
    assert found["holds"] is True
    assert (found["unit"], found["adjacency"], found["rounds"]) == ("example", "zero-out", 4)
    assert found["accountant"] == "analytic"
    assert found["calibrated"] == {"epsilon": 8.0, "delta": 1e-3}
    assert found["sampler"].startswith("shuffled batches, 2 epochs a round")
    assert private.task.noise_multiplier == private.noise_multiplier
    assert 7.98 < found["epsilon"] <= 8.0
    assert gaussian_delta(math.sqrt(4 * 2) / private.noise_multiplier, found["epsilon"]) == pytest.approx(
        1e-3, rel=1e-6
    )
    assert private.block(2)["epsilon"] < found["epsilon"]


@pytest.mark.parametrize(("sampling", "adjacency"), [("poisson", "zero-out"), ("fixed", "replace-one")])
def test_a_run_with_drawn_batches_says_what_its_worst_client_is_promised(sampling: Any, adjacency: str) -> None:
    lists = [list(range(20)), list(range(20, 31))]
    private = set_up(
        lists=lists, cohort="everyone", rounds=4, privacy={"sampling": sampling, "delta": 1e-3}
    ).example_privacy
    assert private is not None
    found = private.block(4)
    how: Any = {"poisson": "poisson", "fixed": "without_replacement"}[sampling]
    # by hand: 4 of n in each of ceil(n / 4) steps of 4 rounds
    events = {n: Composed(((Sampled(Gaussian(0.8), how, n, 4), 4 * -(-n // 4)),)) for n in (20, 11)}
    each = {n: BEST[sampling].epsilon(event, 1e-3) for n, event in events.items()}
    assert found["epsilon"] == pytest.approx(max(each.values()), rel=1e-9)
    assert found["adjacency"] == adjacency
    assert f"4 of {max(each, key=lambda n: each[n])} examples" in found["sampler"]


def test_lines_of_a_record_never_say_less_than_what_was_spent() -> None:
    setup = set_up(lists=[list(range(20))], cohort="everyone", rounds=3,
                   privacy={"sampling": "poisson", "noise_multiplier": 2.0})  # fmt: skip
    private = setup.example_privacy
    assert private is not None
    for rounds in (0, 1, 3):
        line = private.epsilon_after(rounds)
        assert line is not None
        assert line >= private.block(rounds)["epsilon"] * (1 - 1e-9)
    assert private.epsilon_after(3) == private.block(3)["epsilon"]


def test_without_noise_nothing_is_promised() -> None:
    private = set_up(privacy={"noise_multiplier": 0.0}).example_privacy
    assert private is not None
    assert private.epsilon_after(3) is None
    found = private.block(3)
    assert found["holds"] is False
    assert "no noise" in found["why"]
    assert "epsilon" not in found


def test_rows_that_are_held_twice_are_told() -> None:
    shared = Partition.from_lists([[0, 1, 2, 3], [3, 4, 5, 6]] * 3, overlap=True)
    private = set_up(lists=shared).example_privacy
    assert private is not None
    assert any("hold a row up to 6 times" in note for note in private.block(1)["assumed"])


def test_delta_is_a_tenth_of_one_over_the_largest_client_unless_told() -> None:
    private = set_up().example_privacy
    assert private is not None
    assert private.delta == pytest.approx(0.1 / 20)
    assert set_up(algorithm={"name": "centralised", "lr": 0.1}).example_privacy.delta == pytest.approx(  # type: ignore[union-attr]
        0.1 / sum(map(len, LISTS))
    )


def test_the_curve_of_an_event_is_its_rdp_account() -> None:
    plan = DpSgdPlan((320,), batch=32, sampling="poisson")
    event = Composed(((plan.round(1.2, 320), 7),))
    assert plan.bound(1.2, 7, DELTA) == pytest.approx(Rdp().epsilon(event, DELTA), rel=1e-9)


def test_what_the_docs_show_is_what_happens() -> None:
    page = ROOT / "docs" / "example-privacy.md"
    shown = re.search(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    assert shown
    experiment = Experiment.parse(tomllib.loads(shown[1]))
    assert experiment.local.privacy is not None
    assert experiment.local.privacy.sampling == "poisson"
    assert doctest.testfile(str(page), module_relative=False).failed == 0
    row = re.search(r"\| poisson \| [\d.]+ \| ([\d.]+) \|", page.read_text())
    assert row
    plan = DpSgdPlan((600,), batch=32, sampling="poisson")
    assert plan.worst(float(row[1]), 20, 1e-4)[0] == pytest.approx(4.0, rel=0.01)


def test_clients_whose_losses_outgrow_a_grid_are_accounted_by_renyi_divergences() -> None:
    plan = DpSgdPlan(sizes=(100, 400), batch=20, epochs=2, sampling="poisson")
    assert plan.accountant(1.0, 10).name == "pld"
    assert plan.accountant(1e-5, 10).name == "rdp"
    assert plan.worst(1e-5, 10, 1e-4)[0] > 0.5e10  # of one step that an example is in


@pytest.mark.parametrize("sampling", slow_among(["shuffled", "poisson", "fixed"], "fixed"))
def test_the_noise_in_the_table_of_the_page_is_what_is_computed(sampling: Batches) -> None:
    page = (ROOT / "docs" / "example-privacy.md").read_text()
    (cells,) = re.findall(rf"^\| {sampling}[^|]*((?:\| [\d.]+ )+)\|$", page, re.MULTILINE)
    for cell, (n, batch) in zip(cells.split("|")[1:], ((64, 32), (600, 32), (6000, 64)), strict=True):
        plan = DpSgdPlan(sizes=(n,), batch=batch, sampling=sampling)
        assert float(cell) == round(plan.noise(epsilon=4.0, delta=1e-4, rounds=20), 2)
