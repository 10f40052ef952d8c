"""Lengths of messages that depend on their numbers: each client's are recorded, and virtual time is of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.clock import COUNTED
from atoll.experiment import Experiment
from atoll.records import RunFolder
from atoll.runs import run_together
from tests.support.shell import shell

FRAME, PAYLOAD = 1514, 1448  # bytes of a full packet: on the link, and ours
SLOW = {"seconds_per_step": 0.0, "up_mbps": 0.01, "down_mbps": 1.0, "slow_start": False}
CODED = [{"name": "qsgd", "levels": 1}, "entropy"]
SILENT = [{"name": "relevance", "threshold": 0.6}]
GIVEN: dict[str, Any] = {
    "rounds": 4,
    "engine": "vector",
    "data": "digits",
    "partition": {"name": "dirichlet", "alpha": 0.3, "clients": 8},
    "cohort": {"name": "fixed", "size": 4},
    "task": {"model": "linear"},
    "local": {"batch": 16, "max_steps": 3},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "evaluate": {"every": 4, "clients": 0},
    "checkpoint": {"every": 1},
    "clock": SLOW,
}
KINDS: dict[str, dict[str, Any]] = {
    "lengths that are fixed": {},
    "a coder": {"transform": CODED},
    "silent clients": {"transform": SILENT},
    "a coder, late clients": {"transform": CODED, "clock": {**SLOW, "devices": "phones", "deadline": 0.6}},
    "a coder, lost clients": {"transform": CODED, "clock": {**SLOW, "dropout": 0.4}},
    "a coder, the first of more": {"transform": CODED, "clock": {**SLOW, "over_selection": 1.5}},
    "a coder, nobody in time": {"transform": CODED, "clock": {**SLOW, "deadline": 0.1}},
    "coders both ways": {"transform": CODED, "broadcast": CODED},
    "coders both ways, lost clients": {"transform": CODED, "broadcast": CODED, "clock": {**SLOW, "dropout": 0.3}},
    "positions both ways": {
        "transform": [{"name": "ternary", "share": 0.1}],
        "broadcast": [{"name": "top_k", "share": 0.1}],
    },
    "whoever a coin says": {"transform": CODED, "cohort": {"name": "poisson", "size": 2}},
    "draws of one client twice": {"transform": CODED, "cohort": {"name": "fixed_with_replacement", "size": 12}},
    "clusters": {"transform": CODED, "round": {"name": "ifca", "clusters": 2}},
    "parts of a model": {"task": {"model": "mlp"}, "algorithm": {"name": "heterofl", "lr": 0.1}},
    "an asynchronous server": {"transform": CODED, "round": {"name": "fedbuff", "concurrency": 5, "buffer": 2}},
    "one shot": {"round": "one_shot"},
    "one shot, a coder": {"round": "one_shot", "transform": CODED},
    "handed on": {"round": "cyclic", "transform": CODED},
    "a ring": {"round": "ring", "transform": CODED, "cohort": "everyone"},
    "one cluster": {"transform": CODED, "round": {"name": "ifca", "clusters": 1}},
    "matched units": {"round": "fedma", "task": {"model": "mlp"}},
}


def run(folder: Path, **changes: Any) -> atoll.Run:
    return atoll.run({**GIVEN, **changes}, folder)


def times(run: atoll.Run) -> list[dict[str, Any]]:
    return RunFolder(run.folder).times()


def record(run: atoll.Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in RunFolder(run.folder).record()]


def through(line: dict[str, Any], way: str, when: str) -> int:
    """Bytes of the messages that were whole by the end of the round."""
    moments = np.array([np.inf if x is None else x for x in line[when]])
    return int(np.broadcast_to(line[way], len(moments))[moments <= line["end"]].sum())


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_all_clients_are_those_of_the_record(kind: str, tmp_path: Path) -> None:
    done = run(tmp_path / "run", **KINDS[kind])
    for entry, line in zip(record(done), times(done), strict=True):
        assert {"up": through(line, "up", "arrived"), "down": through(line, "down", "received")} == entry["bytes"]


def test_each_client_has_the_length_of_its_own_message(tmp_path: Path) -> None:
    line = times(run(tmp_path / "run", transform=CODED))[0]
    assert len(set(line["up"])) > 1
    silent = times(run(tmp_path / "silent", transform=SILENT))
    assert min(min(line["up"]) for line in silent) < 100 < max(max(line["up"]) for line in silent)


def test_a_run_of_the_days_when_lengths_were_bounds_is_reported_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its lines have one number for all clients, the longest."""
    sh = shell(tmp_path, monkeypatch, capsys, columns=300)
    old = RunFolder(run(tmp_path / "old", transform=CODED).folder)
    lines = [{**line, "up": 418.0, "down": 2713.0} for line in old.times()]
    (tmp_path / "old" / "clock.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert sh(f"replay {tmp_path}/old --set clock.up_mbps=0.5 --out {tmp_path}/new").code == 0
    assert {line["up"] for line in RunFolder(tmp_path / "new").times()} == {418.0}
    assert sh(f"report {tmp_path}/old {tmp_path}/new --out {tmp_path}/page.html").code == 0


@pytest.mark.parametrize("kind", ["a coder", "silent clients", "coders both ways"])
def test_where_everybody_counts_time_is_of_the_lengths_that_were_sent(kind: str, tmp_path: Path) -> None:
    done = run(tmp_path / "run", **KINDS[kind])
    for entry, line in zip(record(done), times(done), strict=True):
        up, down, sent = (np.array(line[name]) for name in ("up", "down", "sent"))
        packets = FRAME / PAYLOAD * 8
        np.testing.assert_allclose(sent - line["start"], down * packets / 1e6, rtol=1e-12)
        np.testing.assert_allclose(np.array(line["arrived"]) - sent, up * packets / 1e4, rtol=1e-9)
        assert up.sum() == entry["bytes"]["up"]
        assert line["end"] == max(line["arrived"]) == entry["clock"]["end"]
    ends = [line["end"] for line in times(done)]
    assert [line["start"] for line in times(done)] == [0.0, *ends[:-1]]


def test_where_time_decides_who_counts_it_goes_by_the_longest_message(tmp_path: Path) -> None:
    """Who is late is known before anybody trains; the bytes of those who count are real all the same."""
    done = run(tmp_path / "run", transform=CODED, clock={**SLOW, "deadline": 100.0})
    for line in times(done):
        up, seconds = np.array(line["up"]), np.array(line["arrived"]) - np.array(line["sent"])
        assert set(line["status"]) == {COUNTED}
        assert len(set(seconds.round(9))) == 1
        assert (up * FRAME / PAYLOAD * 8 / 1e4 < seconds).all()


def test_a_resumed_run_has_the_same_times_of_real_lengths(tmp_path: Path) -> None:
    file = {**GIVEN, **KINDS["coders both ways"]}
    whole = atoll.run(file, tmp_path / "whole")

    def stop(done: int, rounds: int, entry: dict[str, Any]) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atoll.run(file, tmp_path / "part", watch=stop)
    resumed = atoll.run(file, tmp_path / "part", resume=True)
    assert times(resumed) == times(whole)
    assert [line["model"] for line in record(resumed)] == [line["model"] for line in record(whole)]


def test_runs_of_one_stack_have_the_times_that_each_has_alone(tmp_path: Path) -> None:
    files = [Experiment.parse({**GIVEN, "transform": CODED, "seed": seed}) for seed in (0, 1)]
    stacked = run_together(files, [tmp_path / "s0", tmp_path / "s1"])
    for seed, one in enumerate(stacked):
        alone = run(tmp_path / f"alone{seed}", transform=CODED, seed=seed)
        assert [line["up"] for line in times(one)] == [line["up"] for line in times(alone)]
        assert times(one) == times(alone)


def test_a_clock_that_waits_for_all_still_changes_nothing_but_the_time(tmp_path: Path) -> None:
    plain = atoll.run({k: v for k, v in {**GIVEN, "transform": CODED}.items() if k != "clock"}, tmp_path / "plain")
    clocked = run(tmp_path / "clocked", transform=CODED)
    assert record(plain) == [{k: v for k, v in line.items() if k != "clock"} for line in record(clocked)]


def test_a_replay_is_of_the_lengths_that_were_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sh = shell(tmp_path, monkeypatch, capsys, columns=300)
    run(tmp_path / "old", **KINDS["coders both ways"])
    fresh = run(tmp_path / "fresh", **{**KINDS["coders both ways"], "clock": {**SLOW, "up_mbps": 0.5}})
    assert sh(f"replay {tmp_path}/old --set clock.up_mbps=0.5 --out {tmp_path}/new").code == 0
    assert RunFolder(tmp_path / "new").times() == times(fresh)
    assert [line["clock"] for line in RunFolder(tmp_path / "new").record()] == [line["clock"] for line in record(fresh)]


def test_check_says_that_time_is_at_most_where_lengths_depend_on_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sh = shell(tmp_path, monkeypatch, capsys, columns=300)
    for transform, words in ((CODED, ", at most 1"), (["half"], ", 4")):
        (tmp_path / "e.toml").write_text(Experiment.parse({**GIVEN, "transform": transform}).to_toml())
        said = " ".join(sh(f"check {tmp_path}/e.toml").out.split())
        assert f"{words}" in said[said.index(" clock ") :]
