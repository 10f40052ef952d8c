"""Mixing: rows, columns, gaps, and one product however it is made."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll import rng, tree
from atoll.errors import ConfigError
from atoll.rounds import Choco, Gossip, GradientTracking, PushSum
from atoll.rounds.decentralised import (
    CompleteGraph,
    ErdosRenyiGraph,
    ExactDiffusion,
    ExponentialGraph,
    FileGraph,
    PeerGraph,
    RandomRegularGraph,
    RingGraph,
    StarGraph,
    Topology,
    TorusGraph,
    mixing_of,
)

GRAPHS: list[PeerGraph] = [RingGraph(), CompleteGraph(), StarGraph(), ErdosRenyiGraph(probability=0.3)]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.sampled_from(GRAPHS))
def test_metropolis_weights_are_symmetric_doubly_stochastic_and_not_negative(n: int, graph: PeerGraph) -> None:
    matrix = mixing_of(graph.topology(n, 0), "metropolis")
    assert matrix.symmetric
    assert matrix.doubly_stochastic
    assert torch.allclose(matrix.dense, torch.from_numpy(matrix.sparse.toarray()).float(), atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12), st.integers(0, 1 << 30))
def test_uniform_weights_of_any_directed_graph_sum_to_one_where_they_should(n: int, seed: int) -> None:
    drawn = torch.nonzero(rng.uniform(rng.key(seed), (n, n)) < 0.4).numpy()
    topology = Topology.of(n, drawn)
    rows, columns = (mixing_of(topology, "uniform", way).sparse.toarray() for way in ("rows", "columns"))
    assert np.allclose(rows.sum(1), 1)
    assert np.allclose(columns.sum(0), 1)
    assert rows.min() >= 0
    assert columns.min() >= 0


def test_the_gap_of_known_graphs_is_the_known_one() -> None:
    ring = mixing_of(RingGraph().topology(12, 0), "metropolis").spectral_gap
    assert ring == pytest.approx(1 - (1 / 3 + 2 / 3 * np.cos(2 * np.pi / 12)))
    assert mixing_of(CompleteGraph().topology(12, 0), "metropolis").spectral_gap == pytest.approx(1.0)
    assert mixing_of(RingGraph().topology(1, 0), "metropolis").spectral_gap == 1.0
    two = Topology.of(4, [(0, 1), (2, 3)], both_ways=True)
    assert mixing_of(two, "metropolis").spectral_gap == pytest.approx(0.0, abs=1e-12)


def test_the_gap_of_many_nodes_is_found_without_all_eigenvalues(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = RandomRegularGraph(degree=6).topology(200, 0)
    exact = mixing_of(topology, "metropolis").spectral_gap
    monkeypatch.setattr("atoll.rounds.decentralised.mixing_matrix._EIGEN", 10)
    assert mixing_of(topology, "metropolis").spectral_gap == pytest.approx(exact, rel=1e-3)
    assert mixing_of(topology, "metropolis").smallest_eigenvalue == pytest.approx(2 / 7 - 1)


def test_the_sparse_product_is_the_dense_one(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = mixing_of(ErdosRenyiGraph(probability=0.2).topology(40, 0), "metropolis")
    shapes = {"w": (40, 3, 5), "b": (40,), "none": (40, 0)}
    rows = {name: rng.normal(rng.key(name), shape) for name, shape in shapes.items()}
    rows |= {"double": rows["w"].double(), "count": torch.arange(40), "half": rows["w"].bfloat16()}
    dense = matrix.mix(rows)
    monkeypatch.setattr("atoll.rounds.decentralised.mixing_matrix.DENSE", 10)
    sparse = matrix.mix(rows)
    for name in ("w", "b", "none", "double"):
        assert torch.allclose(sparse[name], dense[name], atol=1e-6), name
        assert sparse[name].dtype == rows[name].dtype
    assert torch.allclose(sparse["half"].float(), dense["w"], atol=2e-2)
    assert torch.equal(sparse["count"], dense["count"])
    expected = matrix.sparse.toarray() @ rows["w"].reshape(40, -1).numpy()
    assert np.allclose(dense["w"].reshape(40, -1), expected, atol=1e-6)
    assert tree.leaves(matrix.mix({})) == []


def test_lazy_weights_keep_half_of_what_is_there() -> None:
    matrix = mixing_of(RingGraph().topology(8, 0), "metropolis")
    assert np.allclose(matrix.lazy.sparse.toarray(), (np.eye(8) + matrix.sparse.toarray()) / 2)
    assert matrix.lazy.smallest_eigenvalue > 0


# What methods refuse.


def test_a_directed_graph_that_is_regular_is_taken_by_gossip_and_not_by_what_needs_symmetry() -> None:
    for method in (Gossip, GradientTracking, PushSum):
        method(ExponentialGraph()).check_population(6)
    with pytest.raises(ConfigError, match=r"d2 needs links that are used both ways .* 'push_sum'"):
        ExactDiffusion(ExponentialGraph()).check_population(6)


def test_a_directed_graph_that_is_not_regular_is_for_push_sum(tmp_path: Path) -> None:
    (tmp_path / "d.txt").write_text("0 1\n1 2\n2 0\n0 2\n")
    graph = FileGraph(str(tmp_path / "d.txt"), directed=True)
    PushSum(graph).check_population(3)
    with pytest.raises(ConfigError, match=r"it is directed and not regular.* Use round.name = 'push_sum'"):
        Gossip(graph).check_population(3)


def test_uniform_weights_of_unlike_neighbours_are_refused() -> None:
    Gossip(TorusGraph(), "uniform").check_population(9)
    with pytest.raises(ConfigError, match=r"neighbours differ in number.* Use weights = 'metropolis'"):
        Gossip(StarGraph(), "uniform").check_population(6)


def test_parts_that_never_meet_are_refused(tmp_path: Path) -> None:
    (tmp_path / "two.txt").write_text("0 1\n2 3\n")
    with pytest.raises(ConfigError, match=r"2 parts of it do not hear of each other.*'ring'.*'local'"):
        Gossip(FileGraph(str(tmp_path / "two.txt"))).check_population(4)
    (tmp_path / "way.txt").write_text("0 1\n1 2\n")
    with pytest.raises(ConfigError, match="or only one way"):
        PushSum(FileGraph(str(tmp_path / "way.txt"), directed=True)).check_population(3)


def test_given_weights_are_taken_as_they_are_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "w.txt"
    graph = FileGraph(str(path))
    path.write_text("0 1 0.25\n1 2 0.5\n")
    matrix = mixing_of(graph.build(3, 0), "given").sparse.toarray()
    assert np.allclose(matrix, [[0.75, 0.25, 0], [0.25, 0.25, 0.5], [0, 0.5, 0.5]])
    path.write_text("0 1 0.75\n1 2 0.5\n")
    with pytest.raises(ConfigError, match=r"those of node 1 sum to 1.25"):
        mixing_of(graph.build(3, 0), "given")
    with pytest.raises(ConfigError, match=r"this graph has none. Use weights = 'metropolis'"):
        Gossip(RingGraph(), "given").check_population(4)


EVEN = "".join(f"{i} {(i + 1) % 8} 0.5\n" for i in range(8))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 1 0\n1 2 0\n2 3 0\n", r"4 parts of it do not hear of each other \(links of weight 0 carry nothing\)"),
        ("0 1 .5\n1 2 0\n2 3 .5\n", r"2 parts of it do not hear of each other \(links of weight 0"),
        ("0 1 .5\n1 2 .5\n2 3 .5\n3 0 .5\n", r"nodes keep nothing .* spectral gap .* Let every node keep a part"),
        ("0 1 .5\n1 2 1e-9\n2 3 .5\n", r"some links carry next to nothing .* Raise them"),
        ("0 0 .9\n0 1 .3\n1 2 .3\n2 3 .3\n", r"gives node 0 0\.9 of its own, and its links leave it 0\.7\."),
        ("0 1 -.1\n1 2 .3\n2 3 .3\n", r"must be 0 or more, and that of nodes \d and \d is -0\.1"),
    ],
)
def test_given_weights_that_cannot_mix_or_contradict_themselves_are_refused(
    text: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "w.txt").write_text(text)
    graph = FileGraph(str(tmp_path / "w.txt"))
    with pytest.raises(ConfigError, match=words):
        Gossip(graph, "given").check_population(4)
    Gossip(graph).check_population(4)


def test_weights_that_only_swap_models_are_for_methods_that_keep_a_part(tmp_path: Path) -> None:
    """An eigenvalue of -1 is none of (I + W) / 2, nor of I + gamma (W - I)."""
    (tmp_path / "w.txt").write_text(EVEN)
    graph = FileGraph(str(tmp_path / "w.txt"))
    for method in (Gossip, GradientTracking, PushSum):
        with pytest.raises(ConfigError, match=r"round.weights: with the given ones \w+ would not bring nodes closer"):
            method(graph, "given").check_population(8)
    ExactDiffusion(graph, "given").check_population(8)
    Choco(graph, "given").check_population(8)


def test_what_a_file_says_that_nodes_keep_is_what_their_links_leave(tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_text("0 0 .6666\n0 1 .3333\n1 1 .3334\n1 2 .3333\n")
    Gossip(FileGraph(str(tmp_path / "w.txt")), "given").check_population(3)
    (tmp_path / "w.txt").write_text("0 0 .667\n0 1 .333\n1 1 .333\n1 2 .333\n2 2 .667\n")
    Gossip(FileGraph(str(tmp_path / "w.txt")), "given").check_population(3)


def test_given_weights_whose_columns_do_not_sum_to_one_are_named(tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_text("0 1 .5\n1 2 .25\n2 0 .5\n")
    with pytest.raises(ConfigError, match=r"what all take of node \d, itself included, is [01]\.\d+ in all"):
        Gossip(FileGraph(str(tmp_path / "w.txt"), directed=True), "given").check_population(3)


def test_d2_without_lazy_weights_is_refused_where_it_would_diverge() -> None:
    ExactDiffusion(CompleteGraph(), lazy=False).check_population(6)
    with pytest.raises(ConfigError, match=r"eigenvalues of W above -1/3.* Leave lazy = true"):
        ExactDiffusion(RingGraph(), lazy=False).check_population(6)
