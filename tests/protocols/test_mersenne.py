"""The field against Python's whole numbers, at its edges most of all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import ConfigError
from atoll.protocols.lagrange import decoding_matrix, encoding_matrix
from atoll.protocols.masks import mask
from atoll.protocols.mersenne import Elements, MersenneField

FIELDS = [MersenneField(31), MersenneField(61)]
fields = st.sampled_from(FIELDS)


def elements(field: MersenneField, *shape: int, seed: int = 0) -> Elements:
    """Random ones, with the least and the greatest among them."""
    draws = np.random.default_rng(seed).integers(0, field.prime, shape, dtype=np.uint64)
    edges = np.random.default_rng(seed + 1).integers(0, 4, shape)
    return np.where(edges == 0, np.uint64(field.prime - 1), np.where(edges == 1, np.uint64(0), draws))


@given(fields, st.integers(0, 2**64 - 1))
def test_words_are_reduced_once_their_upper_part_is_small(field: MersenneField, x: int) -> None:
    x %= 2 * field.prime + 2
    assert field.reduce(np.array([x], np.uint64)).tolist() == [x % field.prime]


@given(fields, st.integers(0, 99))
def test_sums_differences_and_products_are_pythons(field: MersenneField, seed: int) -> None:
    a, b = elements(field, 40, seed=seed), elements(field, 40, seed=seed + 1000)
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    assert field.add(a, b).tolist() == [(x + y) % field.prime for x, y in pairs]
    assert field.subtract(a, b).tolist() == [(x - y) % field.prime for x, y in pairs]
    assert field.multiply(a, b).tolist() == [x * y % field.prime for x, y in pairs]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("terms", [1, 67, 670])
def test_matrix_products_are_exact(field: MersenneField, terms: int) -> None:
    a, b = elements(field, 5, terms), elements(field, terms, 7, seed=1)
    a[0], b[:, 0] = field.prime - 1, field.prime - 1  # the greatest sum there is
    rows, columns = a.tolist(), b.T.tolist()
    wanted = [[sum(x * y for x, y in zip(r, c, strict=True)) % field.prime for c in columns] for r in rows]
    assert field.matmul(a, b).tolist() == wanted


@pytest.mark.parametrize("field", FIELDS)
def test_the_greatest_sums_of_limbs_are_exact_in_float64(field: MersenneField) -> None:
    limb = (1 << field.limb_bits) - 1
    assert field.most_terms * field.limbs * limb * limb < 2**53
    assert field.limbs * field.limb_bits >= field.exponent


def test_more_terms_than_are_exact_are_refused() -> None:
    field = MersenneField(61)
    wide = np.zeros((1, field.most_terms + 1), np.uint64)
    with pytest.raises(ConfigError, match="are exact: use fewer"):
        field.matmul(wide, wide.T)


def test_products_of_many_columns_are_those_of_each() -> None:
    field = MersenneField(31)
    a, b = elements(field, 3, 4), elements(field, 4, 20_000, seed=1)
    assert (field.matmul(a, b)[:, 8190:8195] == field.matmul(a, b[:, 8190:8195])).all()


@pytest.mark.parametrize("field", FIELDS)
def test_inverses_are_inverse(field: MersenneField) -> None:
    table = field.inverses(50)
    assert table[0] == 0
    assert all(i * int(table[i]) % field.prime == 1 for i in range(1, 51))


@pytest.mark.parametrize("field", FIELDS)
def test_a_mask_is_below_the_prime_and_fills_the_field(field: MersenneField) -> None:
    drawn = field.mask(bytes(32), 20_000)
    assert drawn.max() < field.prime
    assert drawn.min() < field.prime // 1000
    assert drawn.max() > field.prime - field.prime // 1000


def test_a_word_of_ones_is_drawn_again_from_the_same_stream() -> None:
    """Of 3 bits one word in eight is 7, which is 0 in the field: it must not make 0 twice as likely."""
    field = MersenneField(3)
    drawn, stream = field.mask(bytes(32), 20_000), mask(bytes(32), 40_000, 3) & 7
    counts = np.bincount(drawn.astype(np.int64), minlength=7)
    assert len(counts) == 7
    assert counts.max() - counts.min() < 400
    assert (drawn == stream[:20_000])[stream[:20_000] < 7].all()


@given(fields, st.integers(1, 8), st.integers(0, 6), st.data())
def test_any_shares_as_many_as_pieces_give_all_pieces(
    field: MersenneField, pieces: int, more: int, data: st.DataObject
) -> None:
    holders = pieces + more
    x = elements(field, pieces, 3)
    shares = field.matmul(encoding_matrix(field, pieces, holders), x)
    chosen = data.draw(st.permutations(range(holders)))[:pieces]
    decoded = field.matmul(decoding_matrix(field, pieces, pieces, chosen), shares[chosen])
    assert decoded.tolist() == x.tolist()


@pytest.mark.parametrize("field", FIELDS)
def test_the_code_is_lagranges(field: MersenneField) -> None:
    matrix, p = encoding_matrix(field, 4, 3).tolist(), field.prime
    for j in range(3):
        for k in range(1, 5):
            value = 1
            for m in range(1, 5):
                if m != k:
                    value = value * (5 + j - m) * pow(k - m, -1, p) % p
            assert matrix[j][k - 1] == value


@pytest.mark.parametrize("noise", [1, 2, 3])
def test_as_many_shares_as_noise_pieces_say_nothing(noise: int) -> None:
    """The noise reaches any so many shares through an invertible matrix: whatever the mask, they are uniform."""
    field, pieces, holders = MersenneField(31), 5, 7
    matrix = encoding_matrix(field, pieces, holders).tolist()
    for first in range(holders - noise + 1):
        rows = [row[pieces - noise :] for row in matrix[first : first + noise]]
        assert _determinant(rows, field.prime) != 0


def _determinant(rows: list[list[int]], p: int) -> int:
    if len(rows) == 1:
        return rows[0][0] % p
    minors = (_determinant([r[:i] + r[i + 1 :] for r in rows[1:]], p) for i in range(len(rows)))
    return sum((-1) ** i * rows[0][i] * minor for i, minor in enumerate(minors)) % p
