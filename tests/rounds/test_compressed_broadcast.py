"""What the server sends, compressed."""

from pathlib import Path
from typing import Any

import pytest
import torch

import atoll
from atoll import tree
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
