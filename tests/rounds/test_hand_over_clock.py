"""Virtual time of models that are handed on: one client after the other, held against a plain walk over them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.clock import Timeline
from atoll.experiment import Experiment, set_up
from atoll.records import RunFolder
from atoll.runs import virtual_time
from atoll.wire import wire_bytes

PACE, MBPS = 0.1, 0.2
CLOCK = {"seconds_per_step": PACE, "up_mbps": MBPS, "down_mbps": MBPS / 2, "latency_ms": 20.0, "slow_start": False}
GIVEN: dict[str, Any] = {
    "rounds": 4,
    "data": "digits",
    "partition": {"name": "dirichlet", "alpha": 0.5, "clients": 6},
    "cohort": {"name": "fixed", "size": 4},
    "local": {"batch": 32},
    "task": {"model": "linear"},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "evaluate": {"clients": 0},
    "clock": {**CLOCK, "slowness": {"median": 1.0, "sigma": 1.0}},
    "engine": "loop",
}
ROUNDS: dict[str, Any] = {
    "cyclic": "cyclic",
    "two rings": {"name": "cyclic", "rings": 2, "order": "shuffled"},
    "ring": "ring",
    "one_shot": "one_shot",
}


def lines_of(run: atoll.Run) -> list[Timeline]:
    return [Timeline.from_line(line) for line in RunFolder(run.folder).times()]


def message_seconds(run: atoll.Run) -> tuple[float, float]:
    """Down and up: latency, and bytes with the headers of packets."""
    line = lines_of(run)[0]
    (sent,), (report,) = (set(np.broadcast_to(x, len(line.ids)).tolist()) for x in (line.down, line.up))
    assert sent == wire_bytes({"params": run.params, "buffers": {}})
    assert run.history[0]["bytes"]["up"] == 4 * report
    down, up = (0.02 + x * 8 * 1514 / 1448 / (r * 1e6) for x, r in ((sent, MBPS / 2), (report, MBPS)))
    return down, up


def slowness(experiment: Any) -> Any:
    """Of every client, by what it took in a central round."""
    setup = set_up(Experiment.parse(experiment))
    return setup.round.clock.devices.profile(np.arange(6)).slowness  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["cyclic", "two rings"])
def test_in_a_cycle_one_begins_when_the_one_before_has_sent(name: str, tmp_path: Path) -> None:
    run = atoll.run({**GIVEN, "round": ROUNDS[name]}, tmp_path)
    (down, up), slow, now = message_seconds(run), slowness({**GIVEN, "round": ROUNDS[name]}), 0.0
    rings = 2 if name == "two rings" else 1
    for line in lines_of(run):
        free = [now] * rings
        for place, (client, steps) in enumerate(zip(line.ids, line.steps, strict=True)):
            begins = free[place % rings]
            done = begins + down + steps * PACE * slow[client]
            free[place % rings] = done + up
            assert line.begins[place] == pytest.approx(begins)
            assert line.sent[place] == pytest.approx(done)
            assert line.arrived[place] == pytest.approx(done + up)
        assert (line.start, line.end) == (pytest.approx(now), pytest.approx(max(free)))
        now = line.end


def test_in_a_ring_a_client_waits_for_the_one_before_it_alone(tmp_path: Path) -> None:
    run = atoll.run({**GIVEN, "round": "ring"}, tmp_path)
    (down, up), slow, ready = message_seconds(run), slowness({**GIVEN, "round": "ring"}), dict.fromkeys(range(6), 0.0)
    for line in lines_of(run):
        ids = line.ids.tolist()
        assert ids == sorted(ids)
        arrived = {c: ready[c] + down + s * PACE * slow[c] + up for c, s in zip(ids, line.steps, strict=True)}
        np.testing.assert_allclose(line.begins, [ready[c] for c in ids], rtol=1e-9)
        np.testing.assert_allclose(line.arrived, [arrived[c] for c in ids], rtol=1e-9)
        ready |= {after: arrived[before] for before, after in zip(ids, ids[1:] + ids[:1], strict=True)}
        assert line.end == pytest.approx(max(ready.values()))


def test_alone_nobody_waits_and_a_line_ends_with_the_exchange_that_could_be_made_then(tmp_path: Path) -> None:
    run = atoll.run({**GIVEN, "round": "one_shot"}, tmp_path)
    (down, up), slow, trained = message_seconds(run), slowness({**GIVEN, "round": "one_shot"}), {}
    for line in lines_of(run):
        for c, s in zip(line.ids.tolist(), line.steps, strict=True):
            trained[c] = trained.get(c, down) + s * PACE * slow[c]
        np.testing.assert_allclose(line.sent, [trained[c] for c in line.ids], rtol=1e-9)
        assert line.end == pytest.approx(max(trained.values()) + up)
    ends = [line.end for line in lines_of(run)]
    assert ends == sorted(ends)


@pytest.mark.parametrize("name", ROUNDS)
def test_a_clock_changes_nothing_but_the_time_and_goes_on_where_it_was(name: str, tmp_path: Path) -> None:
    timed = {**GIVEN, "round": ROUNDS[name], "checkpoint": {"every": 1}}
    run = atoll.run(timed, tmp_path / "timed")
    plain = atoll.run({k: v for k, v in timed.items() if k != "clock"}, tmp_path / "plain")
    assert [(h["model"], h["bytes"]) for h in run.history] == [(h["model"], h["bytes"]) for h in plain.history]

    def stop(done: int, rounds: int, entry: dict[str, Any]) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atoll.run(timed, tmp_path / "cut", watch=stop)
    again = atoll.run(timed, tmp_path / "cut", resume=True)
    assert [h["clock"] for h in again.history] == [h["clock"] for h in run.history]


GRAPHS: dict[str, Any] = {"gossip": {"name": "gossip", "graph": {"name": "erdos_renyi", "every": 1}}}


@pytest.mark.parametrize("name", [*ROUNDS, "gossip", "all_reduce", "central"])
def test_a_forecast_is_the_time_that_a_run_takes(name: str, tmp_path: Path) -> None:
    given = {**GIVEN, "round": {**ROUNDS, **GRAPHS}.get(name, name)}
    run = atoll.run(given, tmp_path)
    lines = lines_of(run)
    forecast = virtual_time(set_up(Experiment.parse(given)), lines[0])
    assert forecast.seconds == [line.seconds for line in lines]
