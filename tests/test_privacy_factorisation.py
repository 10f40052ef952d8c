"""Banded factorisations and trees against matrices and every pattern of participation."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import toeplitz

from atoll.errors import ConfigError
from atoll.privacy import Analytic, Banded, Gaussian, TreeAggregation
from atoll.privacy.factorisation import banded, banded_sensitivity, error, square_root
from atoll.privacy.tree_sensitivity import nodes_square, tree_sensitivity


def matrix(coefficients: tuple[float, ...], rounds: int) -> np.ndarray:
    column = np.zeros(rounds)
    column[: min(len(coefficients), rounds)] = coefficients[:rounds]
    return np.tril(toeplitz(column))


def patterns(rounds: int, separation: int, participations: int) -> list[tuple[int, ...]]:
    """Every set of turns that lie `separation` rounds apart or more."""
    found = []
    for k in range(1, participations + 1):
        for turns in itertools.combinations(range(rounds), k):
            if all(b - a >= separation for a, b in itertools.pairwise(turns)):
                found.append(turns)
    return found


def brute(c: np.ndarray, rounds: int, separation: int, participations: int) -> float:
    """The longest move of C x over every pattern and every sign of a contribution (dimension 1, the extreme points)."""
    worst = 0.0
    for turns in patterns(rounds, separation, participations):
        for signs in itertools.product((1.0, -1.0), repeat=len(turns)):
            worst = max(worst, float(np.linalg.norm(c[:, list(turns)] @ np.array(signs))))
    return worst


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 10), st.integers(1, 5), st.integers(0, 3), st.integers(1, 4))
def test_the_sensitivity_is_the_worst_over_every_pattern_and_sign(
    rounds: int, bands: int, more: int, times: int
) -> None:
    c = banded(rounds, bands)
    slow = brute(matrix(c, rounds), rounds, bands + more, times)
    assert banded_sensitivity(c, rounds, bands + more, times) == pytest.approx(slow)
    assert slow <= math.sqrt(min(times, -(-rounds // (bands + more)))) + 1e-12  # what the event counts


def test_the_event_counts_the_sensitivity_of_the_run() -> None:
    """A banded run costs what one Gaussian costs of its multiplier over the exact sensitivity."""
    c = banded(60, 6)
    event = Banded(5.0, bands=6, separation=10, rounds=60)
    exact = Analytic().epsilon(Gaussian(5.0 / banded_sensitivity(c, 60, 10, 6)), 1e-6)
    assert exact <= Analytic().epsilon(event, 1e-6) <= exact * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 24), st.integers(1, 24))
def test_the_error_is_that_of_the_matrices(rounds: int, bands: int) -> None:
    c = banded(rounds, bands)
    b = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(matrix(c, rounds))
    assert error(c, rounds) == pytest.approx(np.sum(b**2) / rounds)
    assert np.linalg.norm(c) == pytest.approx(1.0)
    assert np.linalg.norm(matrix(c, rounds), axis=0).max() == pytest.approx(1.0)


def test_one_band_is_independent_noise() -> None:
    assert banded(20, 1) == (1.0,)
    assert error((1.0,), 20) == 10.5


def test_more_bands_never_make_more_error() -> None:
    errors = [error(banded(64, b), 64) for b in (1, 2, 4, 8, 16, 32, 64)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0] / 5


@pytest.mark.parametrize(("rounds", "bands"), [(16, 4), (64, 8), (64, 64)])
def test_the_coefficients_are_better_than_the_square_root_and_than_their_neighbours(rounds: int, bands: int) -> None:
    c = np.array(banded(rounds, bands))
    root = square_root(bands)
    best = error(tuple(c), rounds)
    assert best <= error(tuple(root / np.linalg.norm(root)), rounds)
    draw = np.random.Generator(np.random.PCG64(1))
    for _ in range(50):
        other = c + 0.02 * draw.standard_normal(bands) * np.abs(c)
        assert error(tuple(other / np.linalg.norm(other)), rounds) >= best * (1 - 1e-4)


def test_the_square_root_of_the_prefix_sums_is_one() -> None:
    c = matrix(tuple(square_root(12)), 12)
    assert c @ c == pytest.approx(np.tril(np.ones((12, 12))))


def test_bands_beyond_the_separation_are_refused() -> None:
    with pytest.raises(ConfigError, match="5 bands need a separation of as many rounds"):
        banded_sensitivity(banded(20, 5), 20, 4, 3)
    with pytest.raises(ConfigError, match="rounds and bands of at least 1"):
        banded(0, 1)


# Trees


def tree_matrix(rounds: int, restart: int | None) -> np.ndarray:
    """A row for every node that is complete within its tree: which rounds it adds up."""
    length, rows = restart or rounds, []
    for first in range(0, rounds, length):
        last = min(first + length, rounds)
        width = 1
        while width <= last - first:
            for start in range(first, last - width + 1, width):
                rows.append([float(start <= t < start + width) for t in range(rounds)])
            width *= 2
    return np.array(rows)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 11), st.integers(1, 5), st.one_of(st.none(), st.integers(1, 11)))
def test_a_cyclic_tree_is_exactly_as_sensitive_as_its_worst_phase(
    rounds: int, separation: int, restart: int | None
) -> None:
    c = tree_matrix(rounds, restart)
    phases = [list(range(p, rounds, separation)) for p in range(min(separation, rounds))]
    slow = max(
        np.linalg.norm(c[:, turns] @ np.array(signs))
        for turns in phases
        for signs in itertools.product((1.0, 0.0, -1.0), repeat=len(turns))
        if len(turns) <= 6 or min(signs) == 1.0
    )
    event = TreeAggregation(1.0, rounds, separation, restart=restart, pattern="cyclic")
    assert tree_sensitivity(event) == pytest.approx(slow)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 10), st.integers(1, 5), st.integers(1, 3), st.one_of(st.none(), st.integers(1, 10)))
def test_a_separated_tree_is_at_most_as_sensitive_as_counted(
    rounds: int, separation: int, times: int, restart: int | None
) -> None:
    times = min(times, -(-rounds // separation))
    slow = brute(tree_matrix(rounds, restart), rounds, separation, times)
    counted = tree_sensitivity(TreeAggregation(1.0, rounds, separation, times, restart, "separated"))
    assert slow - 1e-12 <= counted <= slow * math.sqrt(3)
    assert tree_sensitivity(TreeAggregation(1.0, rounds, separation, times, restart, "cyclic")) <= counted + 1e-12


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(0, 14)), st.one_of(st.none(), st.integers(1, 15)))
def test_the_squares_over_nodes_are_those_of_the_matrix(turns: set[int], restart: int | None) -> None:
    x = np.array([float(t in turns) for t in range(15)])
    assert nodes_square(sorted(turns), 15, restart) == np.sum((tree_matrix(15, restart) @ x) ** 2)


def test_one_turn_in_a_tree_costs_its_height() -> None:
    assert tree_sensitivity(TreeAggregation(1.0, 16, separation=16)) == pytest.approx(math.sqrt(5))


def test_a_restart_every_round_is_independent_noise() -> None:
    event = TreeAggregation(2.0, rounds=9, restart=1)
    assert tree_sensitivity(event) == 3.0
    assert Analytic().epsilon(event, 1e-5) == pytest.approx(Analytic().epsilon(Gaussian(2.0 / 3), 1e-5))
