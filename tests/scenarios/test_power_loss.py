"""The power fails, and files are cut back to what was synced: a resumed run ends as if nothing had happened."""

import json
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.runs import Run
from tests.scenarios.test_resume import experiment, same
from tests.support.power_loss import LossyDisk


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> LossyDisk:
    return LossyDisk(monkeypatch)


def test_a_run_goes_on_after_a_power_loss_in_any_round(tmp_path: Path, disk: LossyDisk) -> None:
    given, folder = experiment(engine="loop"), tmp_path / "whole"

    def watch(done: int, rounds: int, entry: object) -> None:
        disk.after_power_loss(folder, tmp_path / f"lost-{done}")

    whole = atoll.run(given, folder, watch=watch)
    for done in (1, 4, 8):
        same(atoll.run(given, tmp_path / f"lost-{done}", resume=True), whole)


STOPPED = {"stop": {"patience": 2, "threshold": 0.9}, "rounds": 20, "evaluate": {"every": 2}}


@pytest.mark.parametrize("changes", [{}, STOPPED], ids=["finished", "stopped early"])
def test_what_a_report_reads_of_a_run_that_ended_survives(tmp_path: Path, disk: LossyDisk, changes: Any) -> None:
    whole = atoll.run(experiment(engine="loop", **changes), tmp_path / "whole")
    disk.after_power_loss(whole.folder, tmp_path / "lost")
    same(Run(tmp_path / "lost"), whole)
    names = {p.name for p in whole.folder.iterdir()}
    assert names <= {p.name for p in (tmp_path / "lost").iterdir()}


def test_what_was_measured_by_a_checkpoint_is_on_the_disk_with_it(tmp_path: Path, disk: LossyDisk) -> None:
    """A resumed run does not measure those rounds again: what waits to be written must not be lost."""
    folder, kept = tmp_path / "run", tmp_path / "lost"

    def watch(done: int, rounds: int, entry: object) -> None:
        if done == 7:  # checkpoints are after 3 and 6, evaluations after every round, within one second
            disk.after_power_loss(folder, kept)

    atoll.run(experiment(engine="loop", evaluate={"every": 1}), folder, watch=watch)
    assert json.loads((kept / "clients.json").read_text())["round"] >= 6
