"""Who may send to whom."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import ConfigError
from atoll.messages import WorkerTopology
from atoll.rounds.decentralised import GRAPHS

NAMES = ["a", "b", "c", "d"]


def neighbours(graph: str, n: int) -> torch.Tensor:
    """(n, n) booleans."""
    topology = GRAPHS[graph]().topology(n, 0)
    return torch.from_numpy(topology.matrix(np.ones(topology.edges)).toarray() > 0)


@given(st.integers(2, 9), st.sampled_from(["ring", "complete", "star", "grid", "random"]))
def test_a_graph_of_the_rounds_is_a_topology(n: int, graph: str) -> None:
    matrix = neighbours(graph, n)
    topology = WorkerTopology.of([f"node-{i}" for i in range(n)], matrix)
    for i in range(n):
        assert topology.neighbours(f"node-{i}") == tuple(f"node-{j}" for j in range(n) if matrix[i, j])


def test_a_ring_of_names_is_that_of_the_rounds() -> None:
    for n in range(3, 7):
        names = [f"node-{i}" for i in range(n)]
        assert WorkerTopology.ring(names) == WorkerTopology.of(names, neighbours("ring", n))


def test_a_tree_joins_parents_and_children() -> None:
    topology = WorkerTopology.tree({"root": ["e0", "e1"], "e0": ["c0", "c1"], "e1": ["c2"]})
    assert topology.names == ("root", "e0", "e1", "c0", "c1", "c2")
    assert topology.neighbours("e0") == ("root", "c0", "c1")
    assert topology.neighbours("c2") == ("e1",)


def test_the_same_names_and_links_have_the_same_digest() -> None:
    assert WorkerTopology.ring(NAMES).digest() == WorkerTopology.ring(NAMES).digest()
    assert WorkerTopology.ring(NAMES).digest() != WorkerTopology.complete(NAMES).digest()
    assert WorkerTopology.ring(NAMES).digest() != WorkerTopology.ring(NAMES[::-1]).digest()


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ({}, "has no workers"),
        ({"A": ()}, "'A' is no name"),
        ({"a b": ()}, "is no name"),
        ({"a" * 64: ()}, "is no name"),
        ({"server": ("clint",), "client": ("server",)}, "'clint', which is not there. Did you mean 'client'"),
        ({"a": ("a",)}, "its own neighbour"),
        ({"a": ("b", "b"), "b": ("a",)}, "has one twice"),
        ({"a": ("b",), "b": ()}, "a has the neighbour b, but not the other way round"),
    ],
)
def test_links_that_cannot_be_are_refused(links, words) -> None:
    with pytest.raises(ConfigError, match=words):
        WorkerTopology(links)


def test_names_and_matrix_agree() -> None:
    with pytest.raises(ConfigError, match=r"4 names and a matrix of \(3, 3\)"):
        WorkerTopology.of(NAMES, torch.zeros(3, 3))
    with pytest.raises(ConfigError, match="no worker 'e'"):
        WorkerTopology.ring(NAMES).neighbours("e")
