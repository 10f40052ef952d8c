"""The cryptosystem: keys, both ways to draw r^n, sums, shares of a key; against textbook formulas."""

import math
import secrets
import time
from functools import lru_cache
from itertools import combinations

import gmpy2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import ConfigError, ProtocolError
from atoll.protocols.paillier import PaillierPrivateKey, PaillierPublicKey, gmp, partial_decryption

ways = pytest.mark.parametrize("short", [True, False], ids=["short exponents", "as published"])


@lru_cache
def keys(bits: int = 512, short: bool = True, primes: int = 2) -> tuple[PaillierPrivateKey, PaillierPublicKey]:
    private = PaillierPrivateKey.draw(bits, secrets.token_bytes, primes)
    return private, private.public(secrets.token_bytes if short else None)


def _common(private: PaillierPrivateKey) -> set[int]:
    return {math.gcd(int(p) - 1, int(q) - 1) for p, q in combinations(private.primes, 2)}


@pytest.mark.parametrize("bits", [256, 512, 1024, 2048])
def test_a_key_has_the_bits_asked_for_and_primes_as_the_paper_wants_them(bits: int) -> None:
    private, public = keys(bits)
    assert public.bits == bits
    assert [p.bit_length() for p in private.primes] == [bits // 2] * 2
    assert all(gmpy2.is_prime(p) for p in private.primes)
    assert all(p % 4 == 3 for p in private.primes)
    assert _common(private) == {2}


def test_no_two_primes_have_more_in_common_than_they_must() -> None:
    """gcd(p - 1, q - 1) = 2, which of two primes drawn at random three in ten pairs do not have."""
    pairs = [PaillierPrivateKey.draw(256, secrets.token_bytes) for _ in range(40)]
    assert all(_common(private) == {2} for private in pairs)


@pytest.mark.parametrize("bits", [256, 512, 2048])
def test_three_primes_have_a_product_of_the_bits_asked_for_and_lengths_that_differ_by_one_at_most(bits: int) -> None:
    private, public = keys(bits, primes=3)
    lengths = [int(p).bit_length() for p in private.primes]
    assert (len(lengths), sum(lengths), max(lengths) - min(lengths) <= 1) == (3, bits, True)
    assert all(gmpy2.is_prime(p) for p in private.primes)
    assert public.bits == bits
    assert _common(private) == {2}
    assert math.gcd(int(private.n), math.prod(int(p) - 1 for p in private.primes)) == 1


@ways
@given(plaintext=st.integers(0, 2**600))
def test_a_key_of_three_primes_decrypts_as_the_textbook_does(short: bool, plaintext: int) -> None:
    private, public = keys(short=short, primes=3)
    n = int(public.n)
    edges = [0, 1, n - 1, plaintext % n]
    ciphertexts = public.encrypt(edges, secrets.token_bytes)
    slow = [(pow(int(c), private.order, n * n) - 1) // n * pow(private.order, -1, n) % n for c in ciphertexts]
    assert private.decrypt(ciphertexts) == slow == edges


def test_with_three_primes_what_blinds_is_a_square_modulo_each() -> None:
    private, public = keys(primes=3)
    assert [gmp().jacobi(public.hn, p) for p in private.primes] == [1, 1, 1]


@ways
@given(plaintext=st.integers(0, 2**600))
def test_decryption_gives_back_every_plaintext_below_n(short: bool, plaintext: int) -> None:
    private, public = keys(short=short)
    edges = [0, 1, int(public.n) - 1, plaintext % int(public.n)]
    assert private.decrypt(public.encrypt(edges, secrets.token_bytes)) == edges


@ways
@given(terms=st.lists(st.integers(0, 2**600), min_size=2, max_size=5))
def test_a_product_of_ciphertexts_is_one_of_the_sum(short: bool, terms: list[int]) -> None:
    private, public = keys(short=short)
    first, *others = (public.encrypt([term % public.n], secrets.token_bytes) for term in terms)
    for other in others:
        first = public.add(first, other)
    assert private.decrypt(first) == [sum(terms) % public.n]


@ways
def test_decryption_by_remainders_equals_the_textbook(short: bool) -> None:
    """m = L(c^lambda mod n^2) / lambda mod n, where L(x) = (x - 1) / n (Paillier, 1999)."""
    private, public = keys(short=short)
    n, order = int(public.n), private.order
    for c in public.encrypt([secrets.randbelow(n) for _ in range(5)], secrets.token_bytes):
        slow = (pow(int(c), order, n * n) - 1) // n * pow(order, -1, n) % n
        assert private.decrypt([c]) == [slow]


@pytest.mark.parametrize("count", [1, 3, 300], ids="{} ciphertexts".format)
def test_powers_from_the_table_are_powers(count: int) -> None:
    """(1 + m n) (h^n)^a mod n^2, with a window that depends on how many are made."""
    _, public = keys()
    exponents = [secrets.token_bytes(50) for _ in range(count)]
    drawn = iter(exponents)
    ciphertexts = public.encrypt([7] * count, lambda size: next(drawn) if size == 50 else b"")
    n = int(public.n)
    slow = [(1 + 7 * n) * pow(int(public.hn or 0), int.from_bytes(a, "little"), n * n) % (n * n) for a in exponents[:5]]
    assert ciphertexts[:5] == slow


def test_the_base_of_short_exponents_is_minus_a_square_to_the_n() -> None:
    private, public = keys()
    h = gmp().powmod(public.hn, gmp().invert(public.n, private.order), public.n)
    assert [gmp().jacobi(h, p) for p in private.primes] == [-1, -1]  # -1 is no square modulo either


@ways
def test_one_plaintext_has_many_ciphertexts(short: bool) -> None:
    _, public = keys(short=short)
    assert len(set(public.encrypt([5] * 20, secrets.token_bytes))) == 20


@pytest.mark.parametrize("primes", [2, 3])
@pytest.mark.parametrize("shares", [1, 2, 5])
def test_all_shares_together_decrypt_and_all_but_one_do_not(shares: int, primes: int) -> None:
    private, public = keys(primes=primes)
    plaintexts = [0, 123, int(public.n) - 1]
    ciphertexts = public.encrypt(plaintexts, secrets.token_bytes)
    parts = [partial_decryption(public, share, ciphertexts) for share in private.split(shares, secrets.token_bytes)]
    assert public.combine(parts) == plaintexts
    for left_out in range(shares if shares > 1 else 0):
        with pytest.raises(ProtocolError, match="do not decrypt together"):
            public.combine([part for i, part in enumerate(parts) if i != left_out])


def test_shares_are_drawn_anew_each_time() -> None:
    private, _ = keys()
    one, two = (private.split(3, secrets.token_bytes) for _ in range(2))
    assert not set(one) & set(two)


def test_what_is_no_ciphertext_of_the_key_is_refused() -> None:
    private, public = keys()
    good = public.encrypt([1], secrets.token_bytes)
    public.check(good, "client 3")
    for c, why in (
        (0, "between 1"),
        (public.n**2, "between 1"),
        (private.primes[0], "shares a factor"),
        (public.n, "factor"),
    ):
        with pytest.raises(ProtocolError, match=f"client 3: .*{why}"):
            public.check([*good, c], "client 3")


def test_private_keys_are_not_printed() -> None:
    private, _ = keys()
    assert str(private.primes[0]) not in repr(private)


def test_without_gmpy2_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gmpy2", None)
    with pytest.raises(ConfigError, match=r"paillier: needs gmpy2. Run `pip install 'atoll\[secure\]'`"):
        gmp()


@pytest.mark.slow
def test_an_encryption_with_a_short_exponent_takes_a_tenth_of_the_time() -> None:
    def seconds(short: bool) -> float:
        _, public = keys(2048, short)
        began = time.process_time()
        public.encrypt([1] * 100, secrets.token_bytes)
        return time.process_time() - began

    assert seconds(True) < seconds(False) / 10


@pytest.mark.slow
def test_three_primes_decrypt_in_half_the_time_of_two() -> None:
    def seconds(primes: int) -> float:
        private, public = keys(2048, primes=primes)
        ciphertexts = public.encrypt([1] * 40, secrets.token_bytes)
        began = time.process_time()
        private.decrypt(ciphertexts)
        return time.process_time() - began

    assert min(seconds(3) for _ in range(3)) < 0.6 * min(seconds(2) for _ in range(3))
