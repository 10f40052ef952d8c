"""Virtual time without a server: nodes wait for their neighbours, and for nobody else."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atoll
from atoll.algorithms.fedavg import FedAvg
from atoll.clock import Clock, DeviceProfile, Devices, transfer_seconds
from atoll.errors import ConfigError, RecordError
from atoll.records import Record, read_runs
from atoll.rounds import Gossip
from atoll.rounds.decentralised import RingGraph, StarGraph, Topology
from atoll.rounds.decentralised.node_clock import edge_seconds
from atoll.testing.harness import federation
from atoll.testing.problems import SIZES, quadratics

N = len(SIZES)
STEPS = torch.tensor([-(-n // 2) for n in SIZES])


class Handmade(Devices):
    """Node 0 is ten times slower than the others; no link takes time."""

    def profile(self, ids: np.ndarray) -> DeviceProfile:
        one = np.ones(len(ids))
        slow = np.where(ids == 0, 10.0, 1.0)
        return DeviceProfile(slow, np.inf * one, np.inf * one, 0 * one, 0 * one)


def timed(rounds: int, graph: Any) -> list[tuple[Any, np.ndarray]]:
    """The timelines, and when each node was through."""
    clock = Clock(Handmade(), seconds_per_step=1.0, slow_start=False)
    round = Gossip(graph).in_virtual_time(clock, lambda ids: STEPS[ids])
    made = federation(quadratics(), FedAvg(quadratics().task, 0.1), round=round)
    return [(made.run(range(N)).timeline, made.state["clock"]["now"].numpy()) for _ in range(rounds)]


def plain(rounds: int, topology: Topology) -> list[np.ndarray]:
    now, ends = np.zeros(N), []
    for _ in range(rounds):
        done = now + STEPS.numpy() * np.where(np.arange(N) == 0, 10.0, 1.0)
        now = np.array([max([done[i], *done[topology.source[topology.target == i]]]) for i in range(N)])
        ends.append(now)
    return ends


@pytest.mark.parametrize("graph", [RingGraph(), StarGraph()])
def test_a_node_goes_on_when_it_and_its_neighbours_are_done(graph: Any) -> None:
    for (timeline, now), expected in zip(timed(4, graph), plain(4, graph.topology(N, 0)), strict=True):
        assert np.allclose(now, expected)
        assert timeline.end == expected.max()
        assert timeline.counted.all()


def test_a_slow_node_reaches_only_its_neighbours_in_a_round() -> None:
    first, second = (now for _, now in timed(2, RingGraph()))
    assert (first[[0, 1, 5]] == 10.0).all()
    assert (first[[2, 3, 4]] < 10.0).all()
    assert second[3] < second[2]


def test_a_message_takes_the_narrower_end_shared_among_all_messages_of_the_round() -> None:
    star, one = StarGraph().topology(4, 0), np.ones(4)
    device = DeviceProfile(one, 1e6 * one, 4e6 * one, 0.01 * one, 0.1 * one)
    seconds = edge_seconds(star, 9000.0, device, True)
    hub_sends, hub_receives = seconds[star.source == 0], seconds[star.target == 0]
    loss = np.array([1 - 0.9 * 0.9])
    for edges, rate in ((hub_sends, 1e6 / 3), (hub_receives, min(1e6, 4e6 / 3))):
        expected = transfer_seconds(9000.0, np.array([rate]), np.array([0.02]), loss, True)[0]
        assert np.allclose(edges, expected)


def record(run: atoll.Run) -> Record:
    return read_runs([run.folder])[0]


GIVEN: dict[str, Any] = {
    "rounds": 4,
    "data": "digits",
    "partition": {"name": "iid", "clients": 6},
    "task": {"model": "linear"},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "engine": "vector",
    "evaluate": {"clients": 0},
    "clock": {"seconds_per_step": 0.01, "devices": "phones"},
}


@pytest.mark.parametrize("round", ["gossip", "choco", {"name": "push_sum", "graph": "exponential"}])
def test_a_run_keeps_time_and_resumes_to_the_same_seconds_and_bits(round: Any, tmp_path: Path) -> None:
    given = {**GIVEN, "round": round, "checkpoint": {"every": 1}}
    whole = atoll.run(given, tmp_path / "whole")
    atoll.run({**given, "rounds": 2}, tmp_path / "half")
    resumed = atoll.run(given, tmp_path / "half", resume=True)
    assert [line["model"] for line in record(resumed).rounds] == [line["model"] for line in record(whole).rounds]
    ends = [line["clock"]["end"] for line in record(whole).rounds]
    assert [line["clock"]["end"] for line in record(resumed).rounds] == ends == sorted(ends)
    untimed = atoll.run({**given, "clock": None}, tmp_path / "untimed")
    assert record(untimed).rounds[-1]["model"] == record(whole).rounds[-1]["model"]


def test_run_json_says_how_many_nodes_and_edges_and_how_fast_they_agree(tmp_path: Path) -> None:
    run = atoll.run({**GIVEN, "rounds": 1, "round": {"name": "gossip", "graph": "ring"}}, tmp_path / "run")
    topology = record(run).run["topology"]
    assert {k: topology[k] for k in ("nodes", "edges", "directed", "changes")} == {
        "nodes": 6,
        "edges": 12,
        "directed": False,
        "changes": False,
    }
    assert topology["spectral_gap"] == pytest.approx(1 / 3)
    assert len(topology["links"]) == 6
    assert "topology" not in record(atoll.run({**GIVEN, "rounds": 1}, tmp_path / "central")).run


def test_times_of_a_graph_cannot_be_replayed_by_a_server_clock(tmp_path: Path) -> None:
    from atoll.cli.replay import replay

    atoll.run({**GIVEN, "rounds": 1, "round": "gossip"}, tmp_path / "run")
    with pytest.raises(RecordError, match=r"its times follow a graph"):
        replay(tmp_path / "run", ["clock.seconds_per_step=1.0"])


@pytest.mark.parametrize(
    ("round", "words"),
    [
        ({"name": "gossip", "graph": "hypercube"}, r"2, 4, 8"),
        ({"name": "gossip", "graph": {"name": "random_regular", "degree": 6}}, r"Use at most 5"),
        ({"name": "gossip", "graph": "rink"}, r"round.graph.name: .*'ring'"),
        ({"name": "gossip", "graph": {"name": "ring", "degree": 3}}, r"round.graph.degree"),
        ({"name": "choco", "graph": "exponential"}, r"'push_sum'"),
        ({"name": "choco", "compressor": "clip_l2"}, r"round.compressor.max_norm"),
        ({"name": "choco", "gamma": 0.0}, r"round.gamma"),
        ({"name": "epidemic", "fanout": 6}, r"round.fanout"),
        ({"name": "all_reduce", "plan": "mesh"}, r"round.plan"),
    ],
)
def test_wrong_files_are_refused_before_anything_runs(round: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        atoll.run({**GIVEN, "round": round}, tmp_path / "run")
    assert not (tmp_path / "run").exists()
