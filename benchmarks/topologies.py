"""Milliseconds and memory of a gossip round by nodes and graph, beside a plain loop over nodes in the same run.

    python benchmarks/topologies.py [--nodes 100 1000 10000] [--json FILE]

Every line is a process of its own, so that its peak is its own. A round is what `atoll run` does (train, step, mix,
record line with a digest of the model), without evaluation: each node takes one step on its 10 rows with a linear model
of 610 parameters. `mix` is the exchange alone. The plain loop has one torch module for each node and does the same step
and the same mixing, node by node. Both take turns in one process, and medians count (the peak is that of a second
process, without the plain loop); the ratio is what to read where a machine is busy.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import nn

from atoll.data import Dataset, Partition
from atoll.experiment import Experiment, assemble
from atoll.records import RunFolder
from atoll.rounds.decentralised import GRAPHS, Topology, mixing_of
from atoll.runs import RunLoop, hardware

NODES = (100, 1_000, 10_000)
CHOSEN = ("ring", "torus", "random_regular", "exponential", "barabasi_albert", "random_matching")
EACH, INPUTS, OUTPUTS, LR = 10, 60, 10, 0.01
TURNS = 5


def experiment(graph: str) -> Experiment:
    return Experiment.parse(
        {
            "rounds": 1_000_000,
            "data": {"name": "atoll.runs.python_inputs:arrays", "digest": "benchmark"},
            "local": {"batch": EACH},
            "algorithm": {"name": "fedavg", "lr": LR},
            "round": {"name": "gossip", "graph": graph},
            "engine": "vector",
            "evaluate": {"every": 1_000_000, "clients": 0},
            "checkpoint": {"every": 0},
        }
    )


class PlainLoop:
    """What one writes first: a module, an optimizer step and a weighted sum for every node in turn."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, topology: Topology) -> None:
        self.x, self.y = x, y
        self.models = [nn.Linear(INPUTS, OUTPUTS) for _ in range(topology.nodes)]
        matrix = mixing_of(topology, "metropolis").sparse
        self.rows = [
            list(zip(matrix.indices[a:b].tolist(), matrix.data[a:b].tolist(), strict=True))
            for a, b in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)
        ]

    def round(self) -> None:
        for i, model in enumerate(self.models):
            rows = slice(i * EACH, (i + 1) * EACH)
            loss = nn.functional.cross_entropy(model(self.x[rows]), self.y[rows])
            for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
                p.data -= LR * g
        old = [[p.data.clone() for p in model.parameters()] for model in self.models]
        for model, row in zip(self.models, self.rows, strict=True):
            for k, p in enumerate(model.parameters()):
                p.data = sum(weight * old[j][k] for j, weight in row)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e3 if sys.platform == "linux" else 1e6)


def measure(nodes: int, graph: str, plain: bool) -> dict[str, Any]:
    """One line, in this process; with the plain loop, whose memory is then in the peak, too."""
    torch.manual_seed(0)
    x, y = torch.randn(nodes * EACH, INPUTS), torch.randint(0, OUTPUTS, (nodes * EACH,))
    setup = assemble(
        experiment(graph),
        Dataset.from_arrays(x, y),
        Partition.from_lists(list(torch.arange(nodes * EACH).split(EACH))),
        nn.Linear(INPUTS, OUTPUTS),
        "cpu",
    )
    with tempfile.TemporaryDirectory() as scratch:
        files = RunFolder(Path(scratch) / "run")
        files.create(0)
        began, before = time.perf_counter(), peak_mb()
        run = RunLoop(setup, files)
        loop = PlainLoop(x, y, GRAPHS[graph]().topology(nodes, 0)) if plain else None
        ours, theirs = [], []
        for _ in range(TURNS):
            ours.append(seconds(run.next_round))
            theirs += [] if loop is None else [seconds(loop.round)]
        matrix = setup.round.matrix(nodes, 0, torch.zeros(2, dtype=torch.int64))  # type: ignore[attr-defined]
        stack = {"w": torch.randn(nodes, OUTPUTS, INPUTS), "b": torch.randn(nodes, OUTPUTS)}
        mixing = statistics.median(seconds(lambda: matrix.mix(stack)) for _ in range(TURNS))
        return {
            "nodes": nodes,
            "graph": graph,
            "edges": matrix.topology.edges,
            "round_ms": 1e3 * statistics.median(ours[1:]),
            "mix_ms": 1e3 * mixing,
            "plain_ms": 1e3 * statistics.median(theirs[1:]) if theirs else None,
            "peak_mb": peak_mb(),
            "before_mb": before,
            "total_s": time.perf_counter() - began,
        }


def seconds(call: Any) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def alone(nodes: int, graph: str, plain: bool) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", str(nodes), graph, *(["--plain"] if plain else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES)
    parser.add_argument("--graphs", nargs="+", default=CHOSEN)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=2)
    parser.add_argument("--plain", action="store_true")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(int(given.one[0]), given.one[1], given.plain)))
        return
    heads = f"{'round ms':>9} {'mix ms':>8} {'plain ms':>9} {'ratio':>6} {'peak MB':>8}"
    print(f"{'nodes':>7} {'graph':<18} {'edges':>8} {heads}")
    lines = []
    for nodes in given.nodes:
        for graph in given.graphs:
            line = alone(nodes, graph, plain=True) | {"peak_mb": alone(nodes, graph, plain=False)["peak_mb"]}
            lines.append(line)
            ratio = line["plain_ms"] / line["round_ms"]
            numbers = f"{line['round_ms']:>9.1f} {line['mix_ms']:>8.2f} {line['plain_ms']:>9.1f} {ratio:>6.1f}"
            print(f"{nodes:>7} {graph:<18} {line['edges']:>8} {numbers} {line['peak_mb']:>8.0f}", flush=True)
    if given.json:
        facts = {"date": date.today().isoformat(), "hardware": hardware(torch.device("cpu")), "lines": lines}
        given.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
