"""The figures of docs/topologies-decentralised.md: each kind of graph, and digits on four of them.

    python benchmarks/topology_figures.py [--out docs/topologies]

`graphs.png` draws 16 nodes of every kind; `curve.png` has the consensus distance and the test loss by round of gossip,
and of gradient tracking on the ring, on digits with 16 clients (Dirichlet 0.1), and prints what they reach.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from matplotlib.figure import Figure

import atoll
from atoll.records import read_runs
from atoll.rounds.decentralised import GRAPHS, mixing_of

NODES = 16
ALIASES = ("random", "file")
GIVEN: dict[str, Any] = {
    "rounds": 60,
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": NODES, "alpha": 0.1},
    "task": {"model": "linear"},
    "local": {"batch": 32},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "engine": "vector",
    "evaluate": {"clients": 0},
    "checkpoint": {"every": 0},
}
ROUNDS: dict[str, dict[str, Any]] = {
    "ring": {"name": "gossip", "graph": "ring"},
    "torus": {"name": "gossip", "graph": "torus"},
    "exponential": {"name": "gossip", "graph": "exponential"},
    "complete": {"name": "gossip", "graph": "complete"},
    "ring, gradient tracking": {"name": "gradient_tracking", "graph": "ring"},
}


def graphs(path: Path) -> None:
    kinds = [name for name in GRAPHS if name not in ALIASES]
    figure = Figure(figsize=(9, 5.6), layout="constrained")
    for axes, name in zip(figure.subplots(3, 5).flat, [*kinds, "", ""], strict=False):
        axes.axis("off")
        if not name:
            continue
        topology = GRAPHS[name]().topology(NODES, 0)
        graph = nx.Graph() if topology.symmetric else nx.DiGraph()
        graph.add_nodes_from(range(NODES))
        graph.add_edges_from(topology.pairs())
        lattice = name in ("grid", "torus")
        circle = nx.circular_layout(graph)
        at = {i: (i % 4, -(i // 4)) for i in range(NODES)} if lattice else circle
        curved = {"connectionstyle": "arc3,rad=0.18"} if name in ("torus", "grid") else {}
        nx.draw_networkx_nodes(graph, at, ax=axes, node_size=22, node_color="#0072b2")
        arrows = True if curved or not topology.symmetric else None
        style = "-|>" if not topology.symmetric else "-"
        extra = {"arrows": arrows, "arrowstyle": style, "arrowsize": 6, **curved} if arrows else {}
        nx.draw_networkx_edges(graph, at, ax=axes, width=0.6, edge_color="#5b6470", node_size=22, **extra)
        gap = mixing_of(topology, "metropolis").spectral_gap
        changing = GRAPHS[name]().changes
        axes.set_title(f"{name}\n{'one round of many' if changing else f'gap {gap:.2f}'}", fontsize=7.5)
    figure.savefig(path, dpi=110)


def curve(path: Path) -> None:
    figure = Figure(figsize=(8, 3), layout="constrained")
    apart, loss = figure.subplots(1, 2)
    with tempfile.TemporaryDirectory() as scratch:
        for name, round in ROUNDS.items():
            run = atoll.run({**GIVEN, "round": round}, Path(scratch) / name)
            record = read_runs([run.folder])[0]
            numbers = np.arange(1, len(record.rounds) + 1)
            distances = [line["diagnostics"]["consensus_distance"] for line in record.rounds]
            losses = [line["loss"] for line in record.rounds]
            apart.semilogy(numbers, np.maximum(distances, 1e-6), label=name, linewidth=1.3)
            loss.plot(numbers, losses, linewidth=1.3)
            last = record.rounds[-1]
            gap, edge = record.run["topology"]["spectral_gap"], last["diagnostics"]["bytes_per_edge"]
            reached = f"distance {distances[-1]:.3g}, loss {losses[-1]:.3f}, accuracy {last['accuracy']:.3f}"
            print(f"{name}: gap {gap:.3f}, {reached}, {last['bytes']['up'] / 1e3:.0f} kB a round, {edge:.0f} B an edge")
    apart.set(xlabel="round", ylabel="consensus distance")
    loss.set(xlabel="round", ylabel="test loss of the mean model")
    figure.legend(loc="outside lower center", ncols=5, fontsize=7.5, frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/topologies"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    graphs(out / "graphs.png")
    curve(out / "curve.png")


if __name__ == "__main__":
    main()
