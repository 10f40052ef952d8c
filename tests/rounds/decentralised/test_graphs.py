"""Graphs: as many links as one can draw, connected, and the same from the same seed."""

import json
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll import rng
from atoll.errors import ConfigError
from atoll.rounds.decentralised import (
    GRAPHS,
    BarabasiAlbertGraph,
    CompleteGraph,
    ErdosRenyiGraph,
    ExponentialGraph,
    FileGraph,
    GridGraph,
    HypercubeGraph,
    OnePeerExponentialGraph,
    PeerGraph,
    RandomMatchingGraph,
    RandomRegularGraph,
    RingGraph,
    StarGraph,
    Topology,
    TorusGraph,
    WattsStrogatzGraph,
    mixing_of,
)
from atoll.rounds.decentralised.changing_graphs import random_pushes

ANY_SIZE: list[PeerGraph] = [
    RingGraph(),
    CompleteGraph(),
    StarGraph(),
    GridGraph(),
    ExponentialGraph(),
    ErdosRenyiGraph(probability=0.3),
]
DIRECTED = (ExponentialGraph, OnePeerExponentialGraph)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.sampled_from(ANY_SIZE))
def test_graphs_of_any_size_are_connected_and_have_no_loops_and_nothing_twice(n: int, graph: PeerGraph) -> None:
    topology = graph.topology(n, 0)
    assert topology.connected
    assert not (topology.source == topology.target).any()
    assert len({*zip(topology.source.tolist(), topology.target.tolist(), strict=True)}) == topology.edges
    assert topology.symmetric or isinstance(graph, DIRECTED)


@settings(max_examples=25, deadline=None)
@given(st.integers(6, 40), st.integers(2, 5), st.integers(0, 3), st.integers(0, 2))
def test_random_graphs_are_connected_symmetric_and_the_same_again(n: int, d: int, seed: int, epoch: int) -> None:
    graphs: list[Any] = [WattsStrogatzGraph(seed, 1, d // 2 * 2, 0.3), BarabasiAlbertGraph(seed, 1, d)]
    graphs += [RandomRegularGraph(seed, 1, d)] if n * d % 2 == 0 else []
    for graph in graphs:
        first, again = graph.build(n, epoch), graph.build(n, epoch)
        assert first.connected
        assert first.symmetric
        assert np.array_equal(first.source, again.source)
        assert (
            not np.array_equal(first.source, graph.build(n, epoch + 1).source)
            or n < 12
            or isinstance(graph, WattsStrogatzGraph)
        )
    if len(graphs) == 3:
        assert set(graphs[2].build(n, epoch).in_degree) == {d}


@pytest.mark.parametrize(
    ("graph", "edges"),
    [(RingGraph(), 12), (CompleteGraph(), 30), (StarGraph(), 10), (GridGraph(), 14), (TorusGraph(), 18)],
)
def test_a_graph_of_six_has_as_many_edges_as_one_can_draw(graph: PeerGraph, edges: int) -> None:
    assert graph.topology(6, 0).edges == edges


@pytest.mark.parametrize(
    ("graph", "n", "degree"),
    [
        (RingGraph(), 9, 2),
        (TorusGraph(), 16, 4),
        (TorusGraph(3), 15, 4),
        (TorusGraph(2), 8, 3),
        (WattsStrogatzGraph(degree=6, rewire=0.0), 12, 6),
        (HypercubeGraph(), 16, 4),
        (ExponentialGraph(), 16, 4),
    ],
)
def test_regular_graphs_have_the_degree_that_they_state(graph: PeerGraph, n: int, degree: int) -> None:
    topology = graph.topology(n, 0)
    assert topology.regular
    assert set(topology.in_degree) == set(topology.out_degree) == {degree}


def test_the_random_graph_of_old_is_still_drawn_from_the_same_numbers() -> None:
    for n, p in ((10, 0.4), (7, 0.1), (33, 0.2)):
        upper = torch.triu(rng.uniform(rng.key("graph"), (n, n)) < p, 1)
        i = torch.arange(n)
        ring = (i[:, None] - i[None, :]).remainder(n)
        expected = upper | upper.T | (ring == 1) | (ring == n - 1)
        matrix = ErdosRenyiGraph(probability=p).topology(n, 0)
        assert np.array_equal(matrix.matrix(np.ones(matrix.edges)).toarray() > 0, expected.numpy())


def test_draws_in_blocks_are_the_draws_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ErdosRenyiGraph(probability=0.2).build(21, 3)
    monkeypatch.setattr("atoll.rounds.decentralised.random_graphs._DRAWS", 50)
    assert np.array_equal(ErdosRenyiGraph(probability=0.2).build(21, 3).source, whole.source)


@pytest.mark.parametrize("n", [8, 16])
def test_the_exact_mean_is_reached_after_log_n_rounds_with_one_peer(n: int) -> None:
    product = np.eye(n)
    for number in range(n.bit_length() - 1):
        topology = OnePeerExponentialGraph().topology(n, number)
        assert set(topology.out_degree) == {1}
        product = mixing_of(topology, "metropolis").sparse.toarray() @ product
    assert np.allclose(product, 1 / n)


@pytest.mark.parametrize("n", [6, 7])
def test_a_matching_pairs_everybody_but_one_of_an_odd_number_and_others_next_time(n: int) -> None:
    first, second = (RandomMatchingGraph().topology(n, number) for number in (0, 1))
    assert first.symmetric
    assert sorted(first.in_degree.tolist()) == [0] * (n % 2) + [1] * (n // 2 * 2)
    assert first.pairs() != second.pairs()


def test_a_fresh_graph_comes_every_so_many_rounds() -> None:
    graph = RandomRegularGraph(every=3, degree=3)
    same = [graph.topology(20, r).pairs() for r in range(7)]
    assert same[0] == same[1] == same[2] != same[3] == same[5] != same[6]
    assert graph.changes
    assert not RandomRegularGraph().changes


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 30), st.integers(1, 6), st.integers(0, 9))
def test_pushes_go_to_as_many_different_others_as_asked(n: int, fanout: int, seed: int) -> None:
    fanout = min(fanout, n - 1)
    topology = random_pushes(rng.key(seed), n, fanout)
    assert set(topology.out_degree) == {fanout}


def test_pushes_reach_everyone_alike() -> None:
    hits = sum(random_pushes(rng.key("even", i), 6, 2).matrix(np.ones(12)).toarray() for i in range(400))
    off = hits[~np.eye(6, dtype=bool)]
    assert off.min() > 0.3 * 400  # 0.4 on average, five deviations of 0.0245
    assert off.max() < 0.5 * 400


# Files.


def test_the_same_graph_is_read_from_every_kind_of_file(tmp_path: Path) -> None:
    graph = nx.Graph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)])
    nx.write_edgelist(graph, tmp_path / "a.edgelist", data=False)
    nx.write_graphml(graph, tmp_path / "a.graphml")
    nx.write_gexf(graph, tmp_path / "a.gexf")
    (tmp_path / "a.json").write_text(json.dumps(nx.adjacency_data(graph)))
    read = [FileGraph(str(tmp_path / f"a.{kind}")).topology(4, 0) for kind in ("edgelist", "graphml", "gexf", "json")]
    assert all(one.pairs() == [[0, 1], [0, 2], [1, 2], [0, 3], [2, 3]] for one in read)


def test_an_edge_list_may_be_directed_and_have_weights_and_comments(tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_text("# who tells whom\n0 1 0.5\n1, 2, 0.25  # commas\n\n2 0 1\n")
    topology = FileGraph(str(tmp_path / "w.txt"), directed=True).topology(3, 0)
    assert not topology.symmetric
    assert topology.given is not None
    assert dict(zip(topology.source.tolist(), topology.given.tolist(), strict=True)) == {0: 0.5, 1: 0.25, 2: 1.0}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 1\n1 9\n", r"names node '9', and clients are 0 to 3"),
        ("0 1\nann bob\n", r"names node 'ann'"),
        ("0 1 2 3\n", r"line 1 has 4 entries.* Use an edge list"),
        ("0 1 heavy\n", r"cannot be read"),
    ],
)
def test_a_file_that_names_strangers_or_is_none_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "g.edgelist").write_text(text)
    with pytest.raises(ConfigError, match=words):
        FileGraph(str(tmp_path / "g.edgelist")).topology(4, 0)


STRINGS = """<graphml><key id="w" for="edge" attr.name="weight" attr.type="string"/><graph edgedefault="undirected">
<node id="0"/><node id="1"/><edge source="0" target="1"><data key="w">SAID</data></edge></graph></graphml>"""


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.graphml", "<graphml></graphml>", r"cannot be read as \.graphml"),
        ("a.gexf", '<gexf xmlns="http://gexf.net/1.2draft" version="1.2"></gexf>', r"cannot be read as \.gexf"),
        ("a.json", "[1, 2]", r"cannot be read as \.json"),
        ("a.json", '{"adjacency": 3}', r"cannot be read as \.json"),
        ("a.graphml", STRINGS.replace("SAID", "heavy"), r"the weight 'heavy', which is no finite number"),
        ("a.txt", "0 1 0.3\n1 2 nan\n", r"link of nodes 1 and 2 the weight nan, which is no finite number"),
        ("a.txt", "0 1 inf\n", r"the weight inf, which is no finite number"),
        ("a.txt", "0 1 .3\n1 0 .1\n", r"nodes 0 and 1 two weights, 0.3 and 0.1. .* directed = true"),
        ("a.txt", "0 1 .3\n1 0\n", r"nodes 0 and 1 two weights, 0.3 and None"),
    ],
)
def test_a_file_that_is_no_graph_is_refused_and_not_a_traceback(
    name: str, text: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=words):
        FileGraph(str(tmp_path / name)).topology(4, 0)


def test_numbers_that_a_file_calls_strings_are_weights_and_links_may_be_said_twice_alike(tmp_path: Path) -> None:
    (tmp_path / "a.graphml").write_text(STRINGS.replace("SAID", "0.25"))
    assert FileGraph(str(tmp_path / "a.graphml")).topology(2, 0).given.tolist() == [0.25, 0.25]  # type: ignore[union-attr]
    (tmp_path / "a.txt").write_text("0 1 .3\n1 0 .3\n")
    assert FileGraph(str(tmp_path / "a.txt")).topology(2, 0).given.tolist() == [0.3, 0.3]  # type: ignore[union-attr]
    assert FileGraph(str(tmp_path / "a.txt"), directed=True).topology(2, 0).edges == 2


def test_a_file_that_was_overwritten_is_another_graph(tmp_path: Path) -> None:
    """Graphs are kept from round to round, and from run to run of one program."""
    path = tmp_path / "a.txt"
    path.write_text("0 1\n1 2\n")
    before = FileGraph(str(path)).topology(3, 0)
    path.write_text("0 1\n1 2\n2 0\n")
    assert FileGraph(str(path)).topology(3, 0).edges == before.edges + 2


@pytest.mark.parametrize(
    ("graph", "n", "words"),
    [
        (FileGraph("nowhere.edgelist"), 4, "there is no file"),
        (HypercubeGraph(), 6, r"2, 4, 8, .* Use 4 or 8 clients"),
        (TorusGraph(), 7, r"a torus needs rows .* 'grid'"),
        (TorusGraph(4), 10, r"needs 4 rows .* such as 8"),
        (RandomRegularGraph(degree=3), 5, r"half a link too many. Use degree = 4"),
        (RandomRegularGraph(degree=6), 6, r"Use at most 5, or graph = 'complete'"),
        (RandomRegularGraph(degree=1), 6, r"random_matching"),
        (WattsStrogatzGraph(degree=9), 8, r"Use at most 7"),
        (TorusGraph(3), 8, r"needs 3 rows .* such as 9, or graph = 'grid'"),
        (TorusGraph(5), 6, r"needs 5 rows .* such as 10"),
        (WattsStrogatzGraph(degree=1), 8, r"degree = 2 or more"),
        (WattsStrogatzGraph(degree=3), 8, r"3 is odd. Use degree = 2 or 4, or graph = 'random_regular'"),
        (WattsStrogatzGraph(degree=7), 8, r"7 is odd. Use degree = 6, or graph = 'random_regular'"),
        (BarabasiAlbertGraph(attach=8), 8, r"Use at most 7"),
    ],
)
def test_what_no_such_graph_has_is_refused_with_advice(graph: PeerGraph, n: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        graph.topology(n, 0)


@pytest.mark.parametrize("name", [name for name in GRAPHS if name not in ("file", "hypercube", "torus")])
def test_one_node_is_a_graph_too(name: str) -> None:
    assert GRAPHS[name]().topology(1, 0).edges == 0


def test_parts_that_hear_only_one_way_are_two() -> None:
    assert Topology.of(2, [(0, 1)]).components == 2
    assert Topology.of(2, [(0, 1)], both_ways=True).components == 1
