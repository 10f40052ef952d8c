"""Whoever is lost, at whatever step: the sum of those whose vectors arrived, or a clean end below the threshold."""

import random
from itertools import combinations, product

import pytest

from atoll.errors import ProtocolError
from atoll.protocols import LightSecAgg, SecAgg, SecAggPlus, SecureAggregation
from tests.support.marks import slow, slow_but
from tests.support.secure import OTHERS, PROTOCOLS, lose, lose_from, plain_sum, survivors, vectors


def check(protocol: SecureAggregation, clients: int, gone: dict[int, int], size: int = 5) -> bool:
    """Is there a sum? It must be where enough stay, and not where too few do."""
    own = vectors(protocol, clients, size)
    gone = {list(own)[position]: step for position, step in gone.items()}
    result = lose(protocol, own, gone)
    if len(own) - len(gone) < protocol.least(clients):
        assert isinstance(result, ProtocolError), gone
        assert "threshold" in str(result)
        return False
    assert not isinstance(result, ProtocolError), (gone, result)
    left = survivors(protocol, own, gone)
    assert result["ids"].tolist() == left
    assert result["sum"].tolist() == plain_sum(protocol, own, left)
    return True


@pytest.mark.parametrize("clients", [4, 5])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_subset_may_be_lost_at_every_step(name: str, clients: int) -> None:
    protocol = PROTOCOLS[name]
    outcomes = [
        check(protocol, clients, dict.fromkeys(gone, step))
        for step in range(len(protocol.answers()))
        for many in range(clients + 1)
        for gone in combinations(range(clients), many)
    ]
    assert len(outcomes) == len(protocol.answers()) * 2**clients
    assert any(outcomes)
    assert not all(outcomes)


@pytest.mark.parametrize("name", slow_but(PROTOCOLS, "secagg"))
def test_two_may_be_lost_at_different_steps(name: str) -> None:
    protocol = PROTOCOLS[name]
    for steps in product(range(len(protocol.answers())), repeat=2):
        for pair in combinations(range(6), 2):
            check(protocol, 6, dict(zip(pair, steps, strict=True)))


@pytest.mark.parametrize(
    ("name", "clients", "runs"),
    [
        ("secagg", 20, 5),
        ("secagg_plus", 30, 5),
        ("light_secagg", 20, 5),
        *(slow(name, clients, 20) for name in PROTOCOLS for clients in (10, 40)),
        *(slow(name, 100, 4) for name in PROTOCOLS),
    ],
)
def test_random_clients_may_be_lost_at_random_steps(name: str, clients: int, runs: int) -> None:
    protocol, draws = PROTOCOLS[name], random.Random(clients)
    spare = clients - protocol.least(clients)
    for run in range(runs):
        many = draws.randint(0, spare) if run % 4 else spare + draws.randint(0, 2)
        gone = {i: draws.randrange(len(protocol.answers())) for i in draws.sample(range(clients), many)}
        assert check(protocol, clients, gone) == (many <= spare)


@pytest.mark.parametrize(
    ("name", "clients", "runs"),
    [
        *((name, 10, 3 if name == "ckks" else 40) for name in OTHERS),
        *(slow(name, 100, 1 if name == "ckks" else 4) for name in OTHERS),
    ],
)
def test_random_clients_may_be_lost_under_homomorphic_keys_and_in_a_shuffle(name: str, clients: int, runs: int) -> None:
    """The sum is of those whose vectors came; there is none where too few came, or who must answer is gone."""
    protocol, draws, sums = OTHERS[name], random.Random(clients), 0
    for run in range(runs):
        own = vectors(protocol, clients)
        lost = draws.sample(list(own), draws.randint(1, clients) if run else 0)
        gone = {id: draws.choice((0, 1, 2, 3, 3, 3, 4)) for id in lost}
        result, log = lose_from(protocol, own, gone)
        came = sorted({id for step in log.up for id, m in step.items() if m.kind in ("ciphertexts", "sealed")})
        if result is None:
            missing = log.down[-1].keys() - log.up[-1].keys()
            assert missing <= gone.keys()
            assert missing or len(came) < 3
            if protocol.least(clients) < clients:  # whoever is left goes on
                assert len(came) < 3 or set(came) <= gone.keys()
            continue
        sums += 1
        assert len(came) >= 3
        assert result["ids"].tolist() == came
        assert result["sum"].tolist() == plain_sum(protocol, own, came)
    assert sums


@pytest.mark.parametrize("threshold", [2, 3, 5, 0.5, 0.9])
@pytest.mark.parametrize("kind", [SecAgg, LightSecAgg])
def test_the_threshold_is_what_one_asks_for(kind: type[SecAgg], threshold: float) -> None:
    protocol = kind(threshold=threshold, insecure_seed=True)
    least = {2: 2, 3: 3, 5: 5, 0.5: 4, 0.9: 6}[threshold]
    assert protocol.least(6) == least
    for step in range(4):
        assert check(protocol, 6, dict.fromkeys(range(6 - least), step))
        assert not check(protocol, 6, dict.fromkeys(range(7 - least), step))


def test_over_a_sparse_graph_a_third_may_be_lost_after_the_shares() -> None:
    protocol = SecAggPlus(insecure_seed=True)
    assert protocol.graph(60).degree < 59
    for step in range(4):
        assert check(protocol, 60, dict.fromkeys(range(0, 54, 3), step))


def test_one_alone_has_no_sum_to_hide_in() -> None:
    for name, protocol in PROTOCOLS.items():
        if not name.startswith("additive"):
            result = lose(protocol, vectors(protocol, 1), {})
            assert isinstance(result, ProtocolError)
            assert "A sum hides a vector among 2" in str(result)


@pytest.mark.parametrize("bits", [2, 20, 32, 33, 50])
@pytest.mark.parametrize("kind", [SecAgg, SecAggPlus, LightSecAgg])
def test_sums_wrap_around_at_any_number_of_bits(kind: type[SecAgg], bits: int) -> None:
    assert check(kind(bits=bits, insecure_seed=True), 6, {0: 2}, size=33)


def test_vectors_may_be_empty() -> None:
    for protocol in PROTOCOLS.values():
        assert check(protocol, 4, {}, size=0)
