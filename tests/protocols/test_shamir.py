"""Shares against a slow oracle: a polynomial found by elimination, not by Lagrange."""

import secrets
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import ProtocolError
from atoll.protocols.shamir import PRIME, SHARE_BYTES, coefficients, combine, split


def eliminated(points: list[int], shares: list[int]) -> int:
    """f(0) of the polynomial through these points: the Vandermonde system, solved by Gauss and Jordan."""
    rows = [[pow(x, k, PRIME) for k in range(len(points))] + [y] for x, y in zip(points, shares, strict=True)]
    for i in range(len(rows)):
        at = next(j for j in range(i, len(rows)) if rows[j][i])
        rows[i], rows[at] = rows[at], rows[i]
        inverse = pow(rows[i][i], -1, PRIME)
        rows[i] = [value * inverse % PRIME for value in rows[i]]
        for j in range(len(rows)):
            if j != i:
                factor = rows[j][i]
                rows[j] = [(a - factor * b) % PRIME for a, b in zip(rows[j], rows[i], strict=True)]
    return rows[0][-1]


@given(st.data(), st.integers(1, 12), st.lists(st.integers(0, 2**256 - 1), min_size=1, max_size=3))
def test_any_threshold_of_shares_give_every_secret(data: st.DataObject, holders: int, numbers: list[int]) -> None:
    threshold = data.draw(st.integers(1, holders))
    ids = st.integers(1, 2**63)
    points = data.draw(st.lists(ids, min_size=holders, max_size=holders, unique=True))
    shares = split(numbers, points, threshold, secrets.token_bytes)
    chosen = data.draw(st.permutations(range(holders)))[:threshold]
    at = [points[i] for i in chosen]
    for k, secret in enumerate(numbers):
        values = [shares[i][k] for i in chosen]
        assert combine(coefficients(at), values) == eliminated(at, values) == secret


def test_more_shares_than_the_threshold_give_the_same() -> None:
    shares = split([42], range(1, 9), 3, secrets.token_bytes)
    assert combine(coefficients(range(1, 9)), [x for [x] in shares]) == 42


def test_one_share_less_than_the_threshold_fits_every_secret() -> None:
    """Through t - 1 shares and any value at 0 goes a polynomial of the same degree: nothing is excluded."""
    points = [1, 2, 3]
    shares = [x for [x] in split([7], range(1, 6), 4, secrets.token_bytes)][:3]
    for guess in (0, 7, 123456789):
        fourth = _value_at(4, [0, *points], [guess, *shares])
        assert combine(coefficients([*points, 4]), [*shares, fourth]) == guess


def _value_at(x: int, points: list[int], values: list[int]) -> int:
    total = 0
    for i, y in zip(points, values, strict=True):
        for j in points:
            if j != i:
                y = y * (x - j) * pow(i - j, -1, PRIME) % PRIME
        total += y
    return total % PRIME


@pytest.mark.parametrize("threshold", [2, 3, 5])
def test_fewer_shares_than_the_threshold_give_something_else(threshold: int) -> None:
    shares = [x for [x] in split([7], range(1, 7), threshold, secrets.token_bytes)]
    for chosen in combinations(range(6), threshold - 1):
        assert combine(coefficients([i + 1 for i in chosen]), [shares[i] for i in chosen]) != 7


def test_a_polynomial_has_as_many_terms_as_the_threshold() -> None:
    """With 2 of 5, three shares lie on one line; with 3 of 5 they do not."""
    for threshold, straight in ((2, True), (3, False)):
        a, b, c = (x for [x] in split([7], [1, 2, 3], threshold, secrets.token_bytes))
        assert ((a - 2 * b + c) % PRIME == 0) == straight


def test_two_draws_share_nothing() -> None:
    one, two = (split([7], range(1, 9), 3, secrets.token_bytes) for _ in range(2))
    assert not {x for [x] in one} & {x for [x] in two}


def test_the_field_is_a_prime_that_holds_32_bytes() -> None:
    assert PRIME > 2**256
    assert all(pow(a, PRIME - 1, PRIME) == 1 for a in (2, 3, 5, 7, 11, 13))
    assert (PRIME - 1).bit_length() <= 8 * SHARE_BYTES


@pytest.mark.parametrize(("points", "threshold"), [([1, 2], 3), ([1, 1], 2), ([0, 1], 2), ([1, 2], 0)])
def test_shares_that_cannot_be_are_refused(points: list[int], threshold: int) -> None:
    with pytest.raises(ProtocolError, match="distinct points other than 0"):
        split([7], points, threshold, secrets.token_bytes)


def test_secrets_outside_the_field_are_refused() -> None:
    with pytest.raises(ProtocolError, match="outside the field"):
        split([PRIME], [1, 2], 2, secrets.token_bytes)


def test_points_and_shares_must_be_as_many() -> None:
    with pytest.raises(ProtocolError, match="two shares at one point"):
        coefficients([3, 3])
    with pytest.raises(ProtocolError, match="1 shares for 2 points"):
        combine(coefficients([1, 2]), [5])
