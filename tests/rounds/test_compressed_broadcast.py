"""What the server sends, compressed."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atoll
from atoll import tree
from atoll.clock import Timeline
from atoll.errors import ConfigError
from atoll.records import RunFolder
from atoll.wire import wire_bytes

BASE: dict[str, Any] = {
    "rounds": 5,
    "data": "digits",
    "partition": {"name": "iid", "clients": 6},
    "cohort": {"name": "fixed", "size": 3},
    "local": {"batch": 32},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "task": {"model": {"name": "mlp", "widths": [8]}},
    "evaluate": {"clients": 0},
}
CODECS: dict[str, list[Any]] = {
    "half": ["half"],
    "top_k": [{"name": "top_k", "share": 0.1}],
    "qsgd": [{"name": "qsgd", "levels": 1}],
    "drive": ["drive"],
    "low_rank": [{"name": "low_rank", "rank": 1}],
    "entropy": [{"name": "qsgd", "levels": 4}, "entropy"],
}


def trained(tmp_path: Path, name: str = "run", **more: Any) -> atoll.Run:
    return atoll.run({**BASE, **more}, tmp_path / name)


def test_a_codec_that_loses_nothing_changes_nothing_but_the_bytes(tmp_path: Path) -> None:
    plain = trained(tmp_path, "plain")
    whole = trained(tmp_path, "whole", broadcast=[{"name": "mask_layers", "send": ["*"]}])
    assert tree.digest(plain.params) != tree.digest(trained(tmp_path, "half", broadcast=["half"]).params)
    for a, b in zip(tree.leaves(plain.params), tree.leaves(whole.params), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert [h["bytes"]["up"] for h in plain.history] == [h["bytes"]["up"] for h in whole.history]


@pytest.mark.parametrize("codec", CODECS)
def test_who_was_there_the_round_before_is_sent_the_difference_and_others_the_whole(codec: str, tmp_path: Path) -> None:
    plain = trained(tmp_path, "plain")
    run = trained(tmp_path, "run", broadcast=CODECS[codec])
    cohorts = [set(line["cohort"]["ids"]) for line in RunFolder(run.folder).record()]
    whole = plain.history[0]["bytes"]["down"] // 3
    assert run.history[0]["bytes"]["down"] == 3 * whole
    for before, now, line in zip(cohorts, cohorts[1:], run.history[1:], strict=False):
        there = len(before & now)
        difference = line["bytes"]["down"] - (3 - there) * whole
        assert (difference == 0) == (there == 0)
        assert there == 0 or difference / there < whole, "a difference is smaller than the whole"


def test_the_whole_is_what_the_model_takes_on_the_wire(tmp_path: Path) -> None:
    run = trained(tmp_path)
    parts = {"params": run.params, "buffers": {}}
    assert run.history[0]["bytes"]["down"] == 3 * wire_bytes(parts)


CLOCK = {"seconds_per_step": 0.0, "up_mbps": 1.0, "down_mbps": 0.1, "latency_ms": 0.0, "slow_start": False}


@pytest.mark.parametrize("codec", CODECS)
def test_on_the_clock_a_difference_takes_the_time_of_its_bytes_and_the_whole_of_its_own(codec, tmp_path) -> None:
    run = trained(tmp_path, broadcast=CODECS[codec], clock=CLOCK)
    assert run.history[-1]["model"] == trained(tmp_path, "untimed", broadcast=CODECS[codec]).history[-1]["model"]
    whole = wire_bytes({"params": run.params, "buffers": {}})
    lines = [Timeline.from_line(line) for line in RunFolder(run.folder).times()]
    before: set[int] = set()
    for line, recorded in zip(lines, run.history, strict=True):
        seconds, there = line.received - line.start, np.isin(line.ids, list(before))
        np.testing.assert_allclose(seconds, line.down * 8 / 1e5 * 1.04558, rtol=1e-4)  # with headers of packets
        assert (line.down[~there] == whole).all()
        assert (line.down[there] < whole).all()
        assert recorded["bytes"]["down"] <= line.down.sum(), "a clock knows what a message takes at most"
        before = set(line.ids.tolist())
    assert sum(bool((line.down < whole).any()) for line in lines) > 1


def test_who_received_but_came_too_late_is_sent_the_whole_the_next_time(tmp_path: Path) -> None:
    """The server knows what a client holds by its report alone."""
    slow = CLOCK | {"deadline": 1.5, "seconds_per_step": 0.1, "slowness": {"median": 1.0, "sigma": 1.5}}
    run = trained(tmp_path, rounds=8, cohort={"name": "everyone"}, broadcast=CODECS["half"], clock=slow)
    whole = wire_bytes({"params": run.params, "buffers": {}})
    lines = [Timeline.from_line(line) for line in RunFolder(run.folder).times()]
    for before, line in pairwise(lines):
        assert (line.down == whole).tolist() == (~before.counted).tolist()
    assert 0 < sum(int((~line.counted).sum()) for line in lines) < 8 * 6


@pytest.mark.parametrize("codec", ["qsgd", "drive", "top_k"])
def test_a_run_learns_however_coarse_the_codec(codec: str, tmp_path: Path) -> None:
    """One level of qsgd errs by more than what it encodes: without the factor the reference would run away."""
    run = trained(tmp_path, rounds=30, cohort={"name": "everyone"}, broadcast=CODECS[codec])
    assert run.history[-1]["accuracy"] > 0.5


@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_it_goes_on_from_a_checkpoint_with_the_same_bits(engine: str, tmp_path: Path) -> None:
    more = {"broadcast": CODECS["top_k"], "engine": engine, "checkpoint": {"every": 1}}
    whole = trained(tmp_path, "whole", **more)

    def stop(done: int, rounds: int, entry: dict[str, Any]) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atoll.run({**BASE, **more}, tmp_path / "cut", watch=stop)
    again = atoll.run({**BASE, **more}, tmp_path / "cut", resume=True)
    assert again.history[-1]["model"] == whole.history[-1]["model"]
    assert [h["bytes"] for h in again.history] == [h["bytes"] for h in whole.history]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"broadcast": [{"name": "clip_l2", "max_norm": 1.0}]}, "broadcast.0: clip_l2 does not make a message smaller"),
        ({"broadcast": ["half"], "round": "gossip"}, "broadcast: compresses what a server sends"),
        ({"broadcast": ["haalf"]}, "Did you mean 'half'"),
    ],
    ids=["no codec", "no server", "a typo"],
)
def test_what_cannot_be_sent_compressed_is_refused(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        trained(tmp_path, **more)
