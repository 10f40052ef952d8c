"""The suite of asynchronous servers against synchronous ones: equally many at work, and seconds to an accuracy."""

from pathlib import Path

import pytest

import atoll
from atoll.errors import ConfigError
from atoll.experiment import Experiment
from atoll.suites import parse, read
from atoll.suites.expand import places

CELLS = {p.name: Experiment.parse(p.base) for p in places(read("async-against-sync"))}


def test_equally_many_clients_are_at_work_whoever_the_server_is() -> None:
    assert len(CELLS) == 16
    for at_work in (13, 26, 52, 104):
        servers = {name.split("/")[1]: e for name, e in CELLS.items() if name.startswith(f"{at_work} ")}
        assert servers["synchronous"].cohort["size"] == at_work
        over = servers["over-selection"]
        assert over.clock is not None
        assert over.cohort["size"] * over.clock.over_selection == pytest.approx(at_work)
        assert {servers[name].round["concurrency"] for name in ("fedbuff(10)", "fedasync")} == {at_work}
        assert {(e.stop.metric, e.stop.target) for e in servers.values() if e.stop} == {("accuracy", 0.85)}


def test_a_run_ends_when_it_is_there_and_its_seconds_are_what_is_measured(tmp_path: Path) -> None:
    given = CELLS["52 at work/fedbuff(10)"].complete()
    run = atoll.run({**given, "rounds": 40, "stop": {**given["stop"], "target": 0.2}}, tmp_path / "a")
    assert run.status.startswith("stopped early")
    assert 0 < run.history[-1][read("async-against-sync").metric.split(".")[0]]["end"] < 20


def test_other_numbers_of_the_clock_are_no_metric_of_a_suite() -> None:
    table = {"title": "x", "axes": ["a"], "value": {"a": {"b": {}}}, "metric": "clock.start"}
    with pytest.raises(ConfigError, match=r"'clock\.start' is not known"):
        parse(table, "mine")
