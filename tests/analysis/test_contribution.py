"""Contributions against all permutations, against plain softmax regression in NumPy, and against each other."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import atoll
from atoll import rng
from atoll.algorithms import model_of
from atoll.analysis.contribution import ContributionOptions, contribution, contribution_table
from atoll.analysis.contribution.coalitions import Coalitions, members
from atoll.analysis.contribution.reconstructed import RoundCoalitions, recorded_rounds, value_of
from atoll.analysis.contribution.shapley import (
    Shares,
    exact_shapley,
    guided_orders,
    guided_truncation,
    leave_one_out,
    summed,
    truncated_monte_carlo,
)
from atoll.analysis.contribution.trained import TrainedCoalitions, coalition_experiment
from atoll.cli.main import app
from atoll.errors import ConfigError
from atoll.experiment import Experiment, set_up

N = 4
RAW: dict[str, Any] = {
    "rounds": 3,
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": N, "alpha": 0.5},
    "task": {"model": "linear"},
    "local": {"batch": 0},
    "algorithm": {"name": "fedavg", "lr": 0.2},
    "metric": "loss",
}


def random_game(n: int, seed: int = 0) -> Coalitions:
    worth = np.random.default_rng(seed).normal(size=1 << n)
    return Coalitions(n, lambda cs: [worth[c] for c in cs])


def by_all_orders(game: Coalitions) -> np.ndarray:
    """The definition: the mean over all n! orders of what a client adds to those before it."""
    values = np.zeros(game.n)
    for order in itertools.permutations(range(game.n)):
        before = 0
        for i in order:
            a, b = game.worth([before, before | 1 << i])
            values[i] += b - a
            before |= 1 << i
    return values / math.factorial(game.n)


def test_exact_values_are_means_over_all_orders_and_share_out_everything() -> None:
    game = random_game(5)
    values = exact_shapley(game).values
    assert values == pytest.approx(by_all_orders(random_game(5)))
    empty, whole = game.worth([0, game.whole])
    assert values.sum() == pytest.approx(whole - empty)
    assert game.count == 2**5


def test_who_adds_nothing_has_nothing_and_equals_have_equal_shares() -> None:
    game = Coalitions(4, lambda cs: [len({*members(c)} & {0, 1, 2}) ** 2 for c in cs])  # client 3 is a dummy
    values = exact_shapley(game).values
    assert values.tolist() == pytest.approx([3.0, 3.0, 3.0, 0.0])
    assert leave_one_out(game).values.tolist() == [5.0, 5.0, 5.0, 0.0]


def test_sampled_values_lie_within_their_errors_and_share_out_everything() -> None:
    game = random_game(6, seed=1)
    exact = exact_shapley(game)
    sampled = truncated_monte_carlo(random_game(6, seed=1), 400, 0.0, rng.key("test"))
    assert (np.abs(sampled.values - exact.values) < 4 * sampled.errors).all()
    assert sampled.values.sum() == pytest.approx(exact.values.sum())
    assert (sampled.errors < 0.15).all()
    guided = guided_truncation(random_game(6, seed=1), 0.0, rng.key("test"), most=80, change=0.0)
    assert (np.abs(guided.values - exact.values) < 4 * guided.errors).all()
    assert guided.values.sum() == pytest.approx(exact.values.sum())


def test_errors_shrink_with_the_root_of_the_number_of_orders() -> None:
    few, many = (truncated_monte_carlo(random_game(6), k, 0.0, rng.key("test")).errors for k in (50, 800))
    assert (few / many).mean() == pytest.approx(4.0, rel=0.2)


def test_truncation_saves_valuations_and_a_tolerance_above_all_values_gives_nothing() -> None:
    saturating = Coalitions(8, lambda cs: [min(1.0, 0.4 * c.bit_count()) for c in cs])
    cut = truncated_monte_carlo(saturating, 10, 0.01, rng.key("test"))
    assert max(c.bit_count() for c in saturating.known if c != saturating.whole) == 3  # three are as good as all
    assert cut.truncated == 5 / 8
    assert cut.values.sum() == pytest.approx(1.0)
    assert not truncated_monte_carlo(random_game(4), 5, 1e9, rng.key("test")).values.any()


def test_guided_orders_begin_with_every_client_once() -> None:
    orders = guided_orders(5, rng.key("test"))
    assert orders[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders.tolist())
    assert not (orders == guided_orders(5, rng.key("other"))).all()


# Coalitions that train.


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return Experiment.parse(RAW)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("coalitions")


class Softmax:
    """FedAvg of full-batch softmax regression over some clients, in NumPy: one gradient step on all their rows."""

    def __init__(self, experiment: Experiment) -> None:
        setup = set_up(experiment)
        self.setup, data = setup, setup.dataset
        self.x, self.test_x = (
            np.asarray(part["x"], np.float64).reshape(len(part["x"]), -1) / 16 for part in (data.train, data.test)
        )  # type: ignore[index]
        self.y, self.test_y = np.asarray(data.train["y"]), np.asarray(data.test["y"])  # type: ignore[index]
        params = {k: np.asarray(v, np.float64) for k, v in setup.model["params"].items()}
        self.w = next(v for v in params.values() if v.ndim == 2)
        self.b = next(v for v in params.values() if v.ndim == 1)
        self.owner = np.full(len(self.x), -1)
        self.owner[setup.training.indices.numpy()] = setup.training.owners().numpy()

    def loss(self, clients: Sequence[int], rounds: int) -> float:
        """The test loss after so many rounds."""
        w, b = self.w.copy(), self.b.copy()
        rows = np.isin(self.owner, list(clients))
        for _ in range(rounds if rows.any() else 0):
            error = self.probabilities(self.x[rows], w, b) - np.eye(10)[self.y[rows]]
            w, b = w - 0.2 * error.T @ self.x[rows] / rows.sum(), b - 0.2 * error.mean(0)
        p = self.probabilities(self.test_x, w, b)
        return float(-np.log(p[np.arange(len(p)), self.test_y]).mean())

    @staticmethod
    def probabilities(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
        scores = x @ w.T + b
        e = np.exp(scores - scores.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)


@pytest.fixture(scope="module")
def oracle(experiment: Experiment) -> Softmax:
    return Softmax(experiment)


def test_coalitions_are_worth_what_plain_training_on_their_rows_reaches(
    experiment: Experiment, folder: Path, oracle: Softmax
) -> None:
    values = TrainedCoalitions(experiment, N, "loss", -1.0, folder)
    found = values(range(1 << N))
    by_hand = [-oracle.loss(list(members(c)), 3) for c in range(1 << N)]
    assert found == pytest.approx(by_hand, abs=1e-4)
    again = TrainedCoalitions(experiment, N, "loss", -1.0, folder)
    assert again(range(1 << N)) == found
    assert again.reused == 1 << N


def test_everybody_is_the_experiment_itself(experiment: Experiment, tmp_path: Path) -> None:
    whole = coalition_experiment(experiment, N, (1 << N) - 1)
    ran = [atoll.run(e, tmp_path / name) for name, e in (("a", experiment), ("b", whole))]
    assert ran[0].history[-1]["model"] == ran[1].history[-1]["model"]


def test_exact_and_sampled_contributions_of_an_experiment(
    experiment: Experiment, folder: Path, oracle: Softmax
) -> None:
    exact = contribution(experiment, folder, ContributionOptions("exact"))
    game = Coalitions(N, lambda cs: [-oracle.loss(list(members(c)), 3) for c in cs])
    assert exact.values == pytest.approx(by_all_orders(game), abs=1e-4)
    assert exact.values.sum() == pytest.approx(exact.gained)
    assert exact.halves is None
    assert (exact.trainings, exact.evaluations) == (16, 16)
    sampled = contribution(experiment, folder, ContributionOptions("tmc", permutations=24, tolerance=0.0))
    assert sampled.halves is not None
    assert (np.abs(sampled.values - exact.values) <= 2.5 * sampled.halves).all()
    left_out = contribution(experiment, folder, ContributionOptions("loo"))
    assert left_out.values == pytest.approx(leave_one_out(game).values, abs=1e-4)
    text = contribution_table(exact)
    assert len(text.rows) == N
    assert "16 trainings" in text.notes[2]


# Rounds that are taken apart.


def test_models_of_coalitions_are_the_servers_step_on_their_updates(experiment: Experiment, oracle: Softmax) -> None:
    one_round = Experiment.parse({**RAW, "rounds": 1})
    with recorded_rounds(one_round, "cpu") as (loop, played):
        start = value_of(loop, loop.state.round["server"], "loss", -1.0)
        one = next(iter(played))
        game = Coalitions(N, RoundCoalitions(loop, one, "loss", -1.0))
        assert game.worth([0])[0] == pytest.approx(start, abs=1e-5)
        assert game.worth([game.whole])[0] == pytest.approx(value_of(loop, one.after, "loss", -1.0), abs=1e-5)
        by_hand = [-oracle.loss(list(members(c)), 1) for c in range(1 << N)]
        assert game.worth(range(1 << N)) == pytest.approx(by_hand, abs=1e-4)
        assert tuple(model_of(one.server)["params"]) == tuple(loop.setup.model["params"])


def test_gtg_shares_out_what_training_gained_and_agrees_with_the_exact_values_of_its_rounds(
    experiment: Experiment, folder: Path
) -> None:
    found = contribution(experiment, folder, ContributionOptions("gtg", tolerance=0.0))
    assert found.values.sum() == pytest.approx(found.gained, abs=1e-5)
    assert found.trainings == 1
    exact = np.zeros(N)
    with recorded_rounds(experiment, "cpu") as (loop, played):
        for one in played:
            exact[one.ids.numpy()] += exact_shapley(Coalitions(N, RoundCoalitions(loop, one, "loss", -1.0))).values
    assert found.halves is not None
    assert (np.abs(found.values - exact) <= 2.5 * found.halves + 1e-6).all()


def test_gtg_of_an_algorithm_with_state_at_the_server_still_shares_out_everything(folder: Path) -> None:
    scaffold = Experiment.parse({**RAW, "algorithm": {"name": "scaffold", "lr": 0.2}, "local": {"batch": 64}})
    found = contribution(scaffold, folder, ContributionOptions("gtg", tolerance=0.0, seeds=2))
    assert found.values.sum() == pytest.approx(found.gained, abs=1e-4)
    assert found.halves is not None
    assert len(found.by_seed) == 2


# Seeds, and error bars.


def test_seeds_of_gtg_value_the_same_clients(folder: Path) -> None:
    both = contribution(Experiment.parse({**RAW, "local": {"batch": 16}}), folder, ContributionOptions("gtg", seeds=2))
    assert both.splits[0] == both.splits[1]
    alone = contribution(Experiment.parse({**RAW, "local": {"batch": 16}}), folder, ContributionOptions("gtg"))
    assert both.by_seed[0].values == pytest.approx(alone.by_seed[0].values)
    assert not np.allclose(both.by_seed[0].values, both.by_seed[1].values), "training differs by seed"


def test_sampling_errors_are_students_for_the_few_orders_there_are() -> None:
    for orders, quantile in ((2, 12.706), (5, 2.776), (400, 1.966)):
        shares = truncated_monte_carlo(random_game(6), orders, 0.0, rng.key("test"))
        assert shares.halves == pytest.approx(quantile * shares.errors, rel=1e-3)


def test_intervals_of_a_few_orders_hold_the_value_as_often_as_they_say() -> None:
    exact = exact_shapley(random_game(6)).values
    held = [
        np.abs(truncated_monte_carlo(random_game(6), 3, 0.0, rng.key("test", k)).values - exact)
        <= truncated_monte_carlo(random_game(6), 3, 0.0, rng.key("test", k)).halves
        for k in range(200)
    ]
    assert np.mean(held) > 0.9


def test_rounds_add_up_with_the_freedom_that_they_have_together() -> None:
    one = Shares(np.ones(2), np.array([1.0, 0.0]), 3)
    two = Shares(np.ones(2), np.array([1.0, 0.0]), 3)
    whole = summed([one, two])
    assert whole.errors == pytest.approx([2**0.5, 0.0])
    assert whole.freedom == pytest.approx([4.0, 4.0])  # Welch and Satterthwaite: two equal variances of 2 each


def test_a_tolerance_that_cuts_everything_has_no_error_bar_and_says_so(experiment: Experiment, folder: Path) -> None:
    found = contribution(experiment, folder, ContributionOptions("gtg", tolerance=10.0))
    assert not found.values.any()
    assert found.halves is not None
    assert np.isnan(found.halves).all()
    text = contribution_table(found)
    assert any("100% of the steps were cut short" in note for note in text.notes)
    assert not any("\u00b1" in cell.inline for row in text.rows for cell in row.filled)


# Mistakes.


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({"transform": [{"name": "clip_l2", "max_norm": 1.0}]}, ContributionOptions("gtg"), "--method tmc"),
        ({"reducer": "median"}, ContributionOptions("gtg"), "means of updates"),
        ({"attack": {"name": "sign_flip", "share": 0.25}}, ContributionOptions("gtg"), "attack: sign_flip makes up"),
        ({"partition": {"name": "iid", "clients": 40}}, ContributionOptions("exact"), "Use tmc or gtg"),
        ({"cohort": {"name": "poisson", "probability": 0.5}}, ContributionOptions("loo"), "cohort.name"),
        ({}, ContributionOptions("gtg", metric="acuracy"), "Metrics: "),
        ({}, ContributionOptions("tmc", permutations=1), "--permutations"),
        ({}, ContributionOptions("exact", seeds=2), "--seeds: every seed draws its own clients"),
        (
            {"attack": {"name": "label_flip", "share": 0.25}},
            ContributionOptions("gtg", seeds=2),
            "attack.share: draws other attackers at every seed",
        ),
    ],
)
def test_what_cannot_be_valued_is_refused_with_advice(
    changes: dict[str, Any], options: ContributionOptions, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        contribution(Experiment.parse({**RAW, **changes}), tmp_path, options)


def test_the_command_prints_clients_and_cost(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(Experiment.parse({**RAW, "rounds": 1}).to_toml())
    with torch.random.fork_rng():
        result = CliRunner().invoke(app, ["contribution", str(file), "--json", str(tmp_path / "out.json")])
    assert result.exit_code == 0, result.output
    assert "client 3" in result.output
    assert "It took 1 training" in " ".join(result.output.split())
    assert (tmp_path / "out.json").exists()
