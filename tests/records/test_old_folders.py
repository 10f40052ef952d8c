"""Folders that an earlier version wrote still open: `golden/sweep-format-1` is what `atoll sweep` of 0.1.0 left.

Made at commit 19607cd with `atoll sweep made_from.toml --device cpu`; without checkpoints, and the processor's name.
"""

from pathlib import Path

import pytest

from atoll import report
from atoll.analysis.compare import compare, opened
from atoll.experiment import Experiment
from atoll.records import RunFolder, SweepFolder, ended, read_results, read_runs, runs_at
from tests.support.paths import GOLDEN, ROOT

OLD = GOLDEN / "sweep-format-1"
RESULTS = sorted((ROOT / "results").rglob("results.json"))


def test_every_run_of_an_old_sweep_is_found_and_read() -> None:
    folders = [RunFolder(path) for path in runs_at(OLD)]
    assert [folder.info["seed"] for folder in folders] == [0, 1]
    assert all(ended(folder.info) for folder in folders)
    assert [[line["round"] for line in folder.record()] for folder in folders] == [[1, 2], [1, 2]]
    assert {entry["state"] for entry in SweepFolder(OLD).listed()} == {"finished"}


def test_an_old_run_has_its_model_and_its_experiment() -> None:
    folder = RunFolder(runs_at(OLD)[0])
    assert {name: tuple(x.shape) for name, x in folder.model().items()} == {"head.weight": (10, 64), "head.bias": (10,)}
    assert Experiment.parse(folder.info["experiment"]).rounds == 2


def test_old_runs_are_reported_and_compared(tmp_path: Path) -> None:
    assert all(record.clients is not None for record in read_runs(runs_at(OLD)))
    assert "fedavg" in report.write(runs_at(OLD), tmp_path / "page.html").read_text()
    assert compare(opened(str(OLD)), opened(str(OLD))).rows[0].difference.mean == 0


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_results_that_were_committed_are_read(path: Path) -> None:
    assert read_results(path).cells
