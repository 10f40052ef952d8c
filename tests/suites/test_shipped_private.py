"""The suites with privacy: every epsilon is kept or called a simulation, and budgets share a stack."""

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll import tree
from atoll.experiment import Experiment
from atoll.privacy import Banded, Composed, Gaussian, Pld, Sampled
from atoll.runs import run_together, why_not_stackable
from atoll.suites import expand, read
from atoll.suites.sweeps.axes import SweepCell
from atoll.suites.sweeps.stacking import stackable
from tests.support.marks import slow_but

DIGITS = {p.name: p for p in expand.places(read("digits-dp")) if p.block == "clients"}
NOISE = ("gaussian_noise", "banded_noise", "discrete_gaussian")


def mechanism(base: Any) -> dict[str, Any]:
    """The layer that adds noise; empty where there is none."""
    layers = [x for x in base.get("transform", []) if isinstance(x, dict) and x["name"] in NOISE]
    return layers[0] if layers else {}


@pytest.mark.parametrize("row", slow_but(["gaussian", "adaptive clip", "banded", "secure sum"], "banded"))
def test_a_mechanism_of_digits_keeps_its_epsilon(row: str, tmp_path: Path) -> None:
    place = DIGITS[f"iid/{row}, epsilon 4/fedavg"]
    run = atoll.run({**place.base, "evaluate": {"every": 20, "clients": 0}}, tmp_path / "run")
    promise = run.info["privacy"]["client"]
    assert promise["holds"]
    assert promise["unit"] == "client"
    assert 3.99 < promise["epsilon"] <= 4.0
    assert promise["delta"] == 1e-3 < 1 / 144
    assert "simulates" not in run.info["privacy"]


def digits(row: str, *budgets: int, seeds: int = 2, **changed: Any) -> list[Experiment]:
    places = [DIGITS[f"iid/{row}, epsilon {e}/fedavg"] for e in budgets]
    return [Experiment.parse({**p.base, **changed, "seed": seed}) for p in places for seed in range(seeds)]


@pytest.mark.slow
def test_a_larger_budget_is_learned_better(tmp_path: Path) -> None:
    cells = digits("banded", 1, 4, 16)
    runs = run_together(cells, [tmp_path / str(i) for i in range(len(cells))])
    low, middle, high = (sum(r.history[-1]["accuracy"] for r in runs[i : i + 2]) / 2 for i in (0, 2, 4))
    assert low + 0.1 < middle
    assert middle < high
    assert high > 0.85


@pytest.mark.parametrize("row", slow_but(["gaussian", "adaptive clip", "secure sum", "banded"], "gaussian"))
def test_runs_that_differ_in_epsilon_share_a_stack_and_are_what_they_are_alone(row: str, tmp_path: Path) -> None:
    cohort = {"name": "cyclic", "size": 36, "min_separation": 4} if row == "banded" else {"name": "everyone"}
    cells = digits(row, 1, 16, seeds=1, rounds=4, cohort=cohort)
    assert why_not_stackable(cells) is None
    assert len(stackable([SweepCell(str(i), {}, e, e.digest()) for i, e in enumerate(cells)])) == 1
    stacked = run_together(cells, [tmp_path / f"stacked {i}" for i in range(2)])
    for i, (cell, run) in enumerate(zip(cells, stacked, strict=True)):
        alone = atoll.run(cell, tmp_path / f"alone {i}")
        gap = tree.norm(tree.sub(run.params, alone.params)) / tree.norm(alone.params)
        assert float(gap) < (1e-3 if row == "secure sum" else 1e-5)
        assert run.info["privacy"] == alone.info["privacy"]
        assert run.info["privacy"]["client"]["calibrated"]["epsilon"] == (1.0, 16.0)[i]
    multipliers = [run.info["privacy"]["client"]["mechanism"] for run in stacked]
    assert len(set(multipliers)) == 2


def test_what_imitates_pfl_research_is_a_simulation_and_what_holds_is_not() -> None:
    places = expand.places(read("pfl-cifar10-dp"))
    for place in places:
        e = Experiment.parse(place.base)
        noise = mechanism(place.base)
        simulated = place.block != "private"
        assert ("noise_cohort" in noise) == simulated == (e.privacy is not None and e.privacy.simulate is not None)
        if not simulated:
            clients = e.partition["clients"]  # type: ignore[index]
            assert noise["delta"] < 1 / clients
            assert e.cohort["name"] in ("poisson", "cyclic_poisson")
            assert (
                e.cohort["size"] * e.cohort.get("min_separation", 1) < clients
            )  # some stay away, or nothing is amplified
    assert {p.block for p in places} == {"cifar10", "3,000 rounds", "private"}


def test_pfl_research_has_its_published_settings() -> None:
    for place in expand.places(read("pfl-cifar10-dp")):
        if place.block == "private":
            continue
        e, noise = Experiment.parse(place.base), mechanism(place.base)
        assert e.rounds == (3000 if place.block == "3,000 rounds" else 1500)
        assert (e.cohort["size"], noise["noise_cohort"]) == (50, 1000)
        assert e.privacy is not None
        assert e.privacy.simulate is not None
        assert e.privacy.simulate.population == 1_000_000
        assert (e.algorithm["lr"], e.algorithm["server_lr"]) == (0.1, 1.0)
        assert [x["max_norm"] for x in place.base["transform"] if x != "equal_weights" and x["name"] == "clip_l2"] == [
            0.4
        ]
        if not place.quirk or "noise" not in place.quirk:
            assert (noise["epsilon"], noise["delta"]) == (2.0, 1e-6)


@pytest.mark.slow
def test_the_published_noise_of_banded_factorisation_costs_more_than_it_says() -> None:
    """A user of one of 48 groups is drawn with probability 0.048; the published account has 0.001."""
    suite = tomllib.loads((resources.files("atoll") / "suites" / "shipped" / "pfl-cifar10-dp.toml").read_text())
    noise = suite["value"]["algorithm"]["fedavg+bmf (as published)"]["transform"][-1]
    run = Banded(noise["noise_multiplier"], noise["bands"], noise["min_separation"], 1500)
    assert run.max_participations == 32
    published = Composed(
        ((Sampled(Gaussian(run.noise_multiplier), "poisson", 1_000_000, 1_000), run.max_participations),)
    )
    in_groups = Sampled(run, "cyclic_poisson", 1_000_000, 1_000, 48)
    assert Pld().epsilon(published, 1e-6) == pytest.approx(2.0, abs=0.01)
    assert Pld().epsilon(in_groups, 1e-6) == pytest.approx(11.9, abs=0.1)


def test_every_budget_of_oarf_is_kept_for_each_example() -> None:
    budgets = {}
    for place in expand.places(read("oarf-dp")):
        table = place.base["local"].get("privacy")
        budgets.setdefault(place.path["data"], []).append(table["epsilon"] if table else None)
        if table:
            clip = 1.0 if place.block == "smaller" else 0.1
            assert table == {"max_norm": clip, "epsilon": table["epsilon"], "delta": 1e-5, "sampling": "poisson"}
            name = f"fedsgd, epsilon {table['epsilon']:g}"
            assert place.path["algorithm"] == (f"{name}, clip 1" if place.block == "smaller" else name)
    assert all(found == [None, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0] for found in budgets.values())
