"""The picture of a graph: who is where, in which colour, and when there is none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.records import read_runs
from atoll.report.graph_picture import MOST, draw_graph, graph_plots, places
from atoll.report.metrics import primary
from atoll.report.plots import Plot
from atoll.report.seed_groups import group

RING = np.array([[i, (i + 1) % 6] for i in range(6)])
GIVEN: dict[str, Any] = {
    "rounds": 1,
    "data": "digits",
    "partition": {"name": "iid", "clients": 6},
    "task": {"model": "linear"},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "engine": "vector",
}


def plots(folder: Path, **changed: Any) -> list[Plot]:
    atoll.run({**GIVEN, **changed}, folder)
    records = read_runs([folder])
    return graph_plots(group(records), primary(records))


def test_neighbours_are_nearer_than_others_and_always_in_the_same_place() -> None:
    at = places(6, RING)
    apart = np.linalg.norm(at[:, None] - at[None], axis=-1)
    near = apart[RING[:, 0], RING[:, 1]]
    assert near.max() < apart[0, 2] < apart[0, 3]
    assert np.array_equal(at, places(6, RING))
    assert places(70, np.array([[i, i + 1] for i in range(69)])).shape == (70, 2)


@pytest.mark.figures
def test_measured_nodes_have_a_colour_and_others_none() -> None:
    figure = draw_graph(6, RING, np.array([1.0, 2.0, np.nan, 4.0, 5.0, 6.0]), "accuracy (%)")
    lines, empty, coloured = figure.axes[0].collections
    assert len(lines.get_paths()) == 6
    assert len(empty.get_offsets()) == 1
    assert coloured.get_array().tolist() == [1.0, 2.0, 4.0, 5.0, 6.0]


def test_a_run_on_a_graph_has_its_picture_and_a_central_one_has_none(tmp_path: Path) -> None:
    (plot,) = plots(tmp_path / "ring", round="gossip")
    assert "6 nodes and 12 directed edges, spectral gap 0.333" in plot.alt
    assert "not measured" not in plot.caption
    assert plots(tmp_path / "central") == []
    assert plots(tmp_path / "reduced", round="all_reduce") == []
    (unmeasured,) = plots(
        tmp_path / "some", round={"name": "push_sum", "graph": "one_peer_exponential"}, evaluate={"clients": 2}
    )
    assert "4 that were not measured are empty" in unmeasured.caption
    assert "other rounds have others" in unmeasured.caption


def test_more_nodes_than_can_be_seen_are_not_drawn(tmp_path: Path) -> None:
    many = {"partition": {"name": "iid", "clients": MOST + 1}, "evaluate": {"clients": 0}, "round": "gossip"}
    assert plots(tmp_path / "many", **many) == []
