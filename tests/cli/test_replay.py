"""`atoll replay`: another time axis, and only where everything else would be the same."""

from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.experiment import Experiment
from atoll.records import RunFolder
from tests.support.shell import Shell, shell

GIVEN: dict[str, Any] = {
    "rounds": 4,
    "engine": "loop",
    "data": "digits",
    "partition": {"name": "dirichlet", "alpha": 0.3, "clients": 8},
    "cohort": {"name": "fixed", "size": 4},
    "task": {"model": "linear"},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "clock": {"seconds_per_step": 0.1, "devices": "phones"},
}


@pytest.fixture
def sh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return shell(tmp_path, monkeypatch, capsys, columns=300)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in RunFolder(folder).record()]


def test_a_replayed_run_is_the_run_that_the_new_clock_would_have_made(sh: Shell, tmp_path: Path) -> None:
    atoll.run(GIVEN, tmp_path / "old")
    clock = {**GIVEN["clock"], "devices": "fedeval", "up_mbps": 2.0}
    fresh = atoll.run({**GIVEN, "clock": clock}, tmp_path / "fresh")
    said = sh(f"replay {tmp_path}/old --set clock.devices=fedeval --set clock.up_mbps=2.0 --out {tmp_path}/new")
    assert said.code == 0, said
    assert RunFolder(tmp_path / "new").times() == RunFolder(tmp_path / "fresh").times()
    assert lines(tmp_path / "new") == lines(tmp_path / "fresh")
    assert RunFolder(tmp_path / "new").info["digest"] == fresh.info["digest"]
    assert sh(f"report {tmp_path}/old {tmp_path}/new --out {tmp_path}/page.html").code == 0


def test_a_protocol_takes_what_it_took_in_another_time(sh: Shell, tmp_path: Path) -> None:
    bounded = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}]
    atoll.run({**GIVEN, "transform": bounded, "secure": {"protocol": "secagg"}, "rounds": 2}, tmp_path / "old")
    assert sh(f"replay {tmp_path}/old --set clock.latency_ms=1000 --out {tmp_path}/new").code == 0
    old, new = (RunFolder(tmp_path / name).times()[0] for name in ("old", "new"))
    assert new["overhead"] == old["overhead"]
    assert min(new["encrypted"]) > 2 * new["overhead"][4] > max(old["encrypted"])


@pytest.mark.parametrize(
    ("clock", "change", "words"),
    [
        ({"deadline": 5.0}, "clock.up_mbps=2.0", "with its clock the rounds would have been others (clock.deadline"),
        ({}, "clock.dropout=0.1", "with the new clock the rounds would have been others (clock.dropout"),
        ({}, "clock.min_reports=4", "with the new clock the rounds would have been others (clock.min_reports"),
        ({}, "algorithm.lr=0.2", "--set algorithm: only [clock] can change without training again"),
        ({}, "clock.up_mbps=0", "clock.up_mbps: must be a number > 0 or table (got 0)"),
        ({}, "clock.up=1", "clock.up: is not an option of clock"),
    ],
)
def test_what_would_need_training_is_refused(
    clock: dict[str, Any], change: str, words: str, sh: Shell, tmp_path: Path
) -> None:
    atoll.run({**GIVEN, "clock": {**GIVEN["clock"], **clock}, "rounds": 1}, tmp_path / "run")
    said = sh(f"replay {tmp_path}/run --set {change}")
    assert said.code != 0
    assert words in " ".join(said.err.split())


def test_a_run_without_a_clock_cannot_be_replayed(sh: Shell, tmp_path: Path) -> None:
    atoll.run({k: v for k, v in GIVEN.items() if k != "clock"}, tmp_path / "run")
    assert "has no [clock]" in " ".join(sh(f"replay {tmp_path}/run").err.split())


def test_check_says_what_the_run_will_take(sh: Shell, tmp_path: Path) -> None:
    run = atoll.run(GIVEN, tmp_path / "run")
    (tmp_path / "e.toml").write_text(Experiment.parse(GIVEN).to_toml())
    said = sh(f"check {tmp_path}/e.toml")
    assert f"{run.history[-1]['clock']['end']:,.4g} s of virtual time for all 4" in " ".join(said.out.split())
