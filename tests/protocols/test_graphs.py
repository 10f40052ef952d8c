"""Neighbours on a ring: how many, who, and what the stated probabilities rest on."""

import secrets
from math import comb

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from scipy.stats import hypergeom

from atoll.protocols.graphs import Graph, sparse_graph


def pieces(neighbours: dict[int, list[int]], left: set[int]) -> int:
    """Connected components among those who are left."""
    order = {id: at for at, id in enumerate(sorted(left))}
    pairs = [(order[a], order[b]) for a in left for b in neighbours[a] if b in left]
    rows, columns = zip(*pairs, strict=True) if pairs else ((), ())
    size = (len(left), len(left))
    return int(connected_components(csr_matrix((np.ones(len(pairs)), (rows, columns)), shape=size))[0])


@pytest.mark.parametrize(("degree", "clients"), [(2, 5), (4, 9), (6, 30), (34, 100)])
def test_each_has_so_many_neighbours_and_is_theirs(degree: int, clients: int) -> None:
    ids = [3 * i + 1 for i in range(clients)]
    neighbours = Graph(degree, 2, 2).neighbours(ids, secrets.token_bytes)
    assert {len(x) for x in neighbours.values()} == {degree}
    for id, others in neighbours.items():
        assert id not in others
        assert others == sorted(set(others))
        assert all(id in neighbours[other] for other in others)
    assert pieces(neighbours, set(ids)) == 1


def test_where_there_are_no_more_all_are_neighbours() -> None:
    assert Graph(4, 2, 2).neighbours([1, 5, 9], secrets.token_bytes) == {1: [5, 9], 5: [1, 9], 9: [1, 5]}
    assert Graph(9, 2, 2).neighbours([1, 5], secrets.token_bytes) == {1: [5], 5: [1]}


def test_neighbours_are_drawn_anew() -> None:
    one, two = (Graph(4, 2, 2).neighbours(range(50), secrets.token_bytes) for _ in range(2))
    assert one != two


def test_a_ring_falls_apart_only_where_two_runs_are_gone() -> None:
    ring = iter(range(20))
    neighbours = Graph(4, 2, 2).neighbours(range(20), lambda n: next(ring).to_bytes(n, "big"))  # in order
    everybody = set(range(20))
    assert pieces(neighbours, everybody - {3, 4}) == 1
    assert pieces(neighbours, everybody - {3, 4, 10}) == 1
    assert pieces(neighbours, everybody - {3, 4, 10, 11}) == 2


@pytest.mark.parametrize("clients", [20, 100, 300, 1000])
@pytest.mark.parametrize(("corrupt", "dropped"), [(0.05, 0.1), (0.1, 0.3), (0.2, 0.2)])
def test_stated_probabilities_are_those_of_scipy(clients: int, corrupt: float, dropped: float) -> None:
    c, d = int(corrupt * clients), int(dropped * clients)
    graph = sparse_graph(clients, c, d, 40, 20)
    k, t = graph.degree, graph.threshold
    exposed = hypergeom(clients - d - 1, c, k).sf(t - 1) * clients
    lost = hypergeom(clients - 1, clients - 1 - d, k).cdf(t - 1) * clients
    apart = comb(clients, 2) * comb(c + d, k) / comb(clients, k)
    assert exposed <= 2**-40
    assert lost <= 2**-20
    assert apart <= 2**-40


def test_where_many_drop_out_it_is_the_ring_that_must_hold() -> None:
    """Two neighbours stay of far fewer than it takes to keep seven in ten gone from cutting the ring."""
    graph = sparse_graph(1000, 1, 700, 40, 1)
    apart = [comb(1000, 2) * comb(701, k) / comb(1000, k) for k in (graph.degree - 2, graph.degree)]
    assert apart[1] <= 2**-40 < apart[0]


def test_two_neighbours_fewer_would_not_do() -> None:
    clients, c, d = 300, 30, 90
    k = sparse_graph(clients, c, d, 40, 20).degree - 2
    safe = next(t for t in range(2, k + 2) if hypergeom(clients - d - 1, c, k).sf(t - 1) * clients <= 2**-40)
    assert hypergeom(clients - 1, clients - 1 - d, k).cdf(safe - 1) * clients > 2**-20


def test_few_clients_are_all_neighbours() -> None:
    for clients in (2, 3, 4, 5, 10):
        graph = sparse_graph(clients, 1, int(0.3 * clients), 40, 20)
        assert graph.degree == clients - 1
        assert graph.threshold == graph.least == max(2, clients - int(0.3 * clients))


def test_degrees_grow_with_the_logarithm_of_the_clients() -> None:
    degrees = [sparse_graph(n, n // 10, 3 * n // 10, 40, 20).degree for n in (100, 1_000, 10_000)]
    assert degrees == [34, 106, 134]
