"""The graph of a run without a server, its nodes coloured by how well each does. Never torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll.records import Record
from atoll.report import theme
from atoll.report.metrics import MetricInfo
from atoll.report.plots import HEIGHT, WIDTH, Plot
from atoll.report.seed_groups import Group

if TYPE_CHECKING:  # matplotlib is slow to import: only what draws does
    from matplotlib.figure import Figure

MOST = 200  # nodes in one picture: a page stays small
_STIFF = 60  # nodes up to which distances in the picture are those in the graph


def graph_plots(groups: Sequence[Group], metric: MetricInfo) -> list[Plot]:
    """The graph of the first run that has one with as many nodes as can be seen; none where there is none."""
    records = (record for one in groups for record in one.records)
    first = next((record for record in records if _drawable(record.run.get("topology"))), None)
    return [] if first is None else [_graph_plot(first, metric)]


def _drawable(topology: Mapping[str, Any] | None) -> bool:
    return topology is not None and "links" in topology and topology["nodes"] <= MOST


def _graph_plot(record: Record, metric: MetricInfo) -> Plot:
    topology = record.run["topology"]
    nodes, links = int(topology["nodes"]), np.array(topology["links"], np.int64).reshape(-1, 2)
    values = np.full(nodes, np.nan)
    measured = record.clients.measured(metric.key, "before") if record.clients else {}
    for node, value in measured.items():
        if isinstance(node, int) and node < nodes:
            values[node] = value * metric.scale
    return Plot(
        "graph",
        "Who sends to whom",
        _caption(record, topology, metric, int(np.isfinite(values).sum())),
        _summary(topology, values, metric),
        lambda: draw_graph(nodes, links, values, metric.unit),
    )


def _caption(record: Record, topology: Mapping[str, Any], metric: MetricInfo, measured: int) -> str:
    which = "Its first graph; other rounds have others. " if topology.get("changes") else ""
    way = "Each link is used one way. " if topology.get("directed") else ""
    colour = f"A node's colour is the {metric.title.lower()} of its own model on its own {_data(record)}"
    unmeasured = topology["nodes"] - measured
    empty = f"; {unmeasured} that were not measured are empty (evaluate.clients)" if unmeasured else ""
    return f"{record.label}, seed {record.seed}. {which}{way}{colour}{empty}."


def _data(record: Record) -> str:
    return record.clients.on if record.clients else "data"


def _summary(topology: Mapping[str, Any], values: NDArray[np.float64], metric: MetricInfo) -> str:
    gap = topology.get("spectral_gap")
    said = f"{topology['nodes']} nodes and {topology['edges']} directed edges"
    said += f", spectral gap {gap:.3g}" if gap is not None else ""
    known = values[np.isfinite(values)]
    spread = f"; {metric.title.lower()} of nodes from {known.min():.4g} to {known.max():.4g}" if known.size else ""
    return f"{said}{spread}."


def places(nodes: int, links: NDArray[np.int64]) -> NDArray[np.float64]:
    """(N, 2) where to draw each node: neighbours near each other, the same in every picture."""
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from(links.tolist())
    circle = nx.circular_layout(graph)
    stiff = nodes <= _STIFF and nx.is_connected(graph)
    found = nx.kamada_kawai_layout(graph, pos=circle) if stiff else nx.spring_layout(graph, pos=circle, seed=0)
    return np.array([found[i] for i in range(nodes)], np.float64).reshape(-1, 2)


def draw_graph(nodes: int, links: NDArray[np.int64], values: NDArray[np.float64], unit: str) -> Figure:
    """Lines and dots, with a bar that says which colour is how much; nodes without a value (NaN) are empty."""
    from matplotlib.collections import LineCollection

    at = places(nodes, links)
    figure, axes = theme.canvas(WIDTH, HEIGHT)
    style: dict[str, Any] = {"colors": theme.PHASES[6], "alpha": 0.6, "linewidths": 0.8, "zorder": 1}
    axes.add_collection(LineCollection([at[pair] for pair in links], **style))
    size = float(np.clip(2400 / max(1, nodes), 12, 90))
    known = np.isfinite(values)
    axes.scatter(
        at[~known, 0], at[~known, 1], s=size, facecolors=theme.PAPER, edgecolors=theme.INK, linewidths=0.6, zorder=2
    )
    if known.any():
        dots = axes.scatter(at[known, 0], at[known, 1], s=size, c=values[known], cmap="viridis", zorder=3)
        figure.colorbar(dots, ax=axes, label=unit, shrink=0.85)
    axes.set_aspect("equal", adjustable="datalim")
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return figure
