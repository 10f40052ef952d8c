"""Loggers: what they write is what the record has, run by run, also where several go on side by side."""

import csv
import sys
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.callbacks import CsvLog, MlflowLog, TensorBoardLog, WandbLog
from atoll.errors import ConfigError

GIVEN: dict[str, Any] = {
    "rounds": 4,
    "engine": "loop",
    "data": "digits",
    "partition": {"name": "iid", "clients": 3},
    "task": {"model": "linear"},
    "local": {"max_steps": 2},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "evaluate": {"every": 2},
}


def lines(path: Path) -> list[dict[str, str]]:
    with path.open() as stream:
        return list(csv.DictReader(stream))


def recorded(run: atoll.Run) -> list[float]:
    return [entry["accuracy"] for entry in run.history if "accuracy" in entry]


def test_a_csv_log_has_what_the_record_has_and_columns_that_come_later(tmp_path: Path) -> None:
    run = atoll.run(GIVEN, tmp_path / "run", callbacks=[CsvLog(), CsvLog(tmp_path / "mine.csv")])
    said = lines(tmp_path / "run" / "log.csv")
    assert [line["accuracy"] for line in said] == ["", *(str(a) for a in (recorded(run)[0], "", recorded(run)[1]))]
    assert [float(line["train_loss"]) for line in said] == [entry["train_loss"] for entry in run.history]
    assert [float(said[-1]["clients.loss.max"])] == [run.final["clients"]["loss"]["max"]]
    assert lines(tmp_path / "mine.csv") == said


def test_a_resumed_run_goes_on_in_its_csv_log(tmp_path: Path) -> None:
    class Gone(atoll.Callback):
        def on_round(self, run: Any, entry: Any) -> None:
            if entry["round"] == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atoll.run({**GIVEN, "checkpoint": {"every": 2}}, tmp_path / "run", callbacks=[CsvLog(), Gone()])
    assert len(lines(tmp_path / "run" / "log.csv")) == 3
    atoll.run({**GIVEN, "checkpoint": {"every": 2}}, tmp_path / "run", resume=True, callbacks=[CsvLog()])
    assert [line["round"] for line in lines(tmp_path / "run" / "log.csv")] == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("package", "make"),
    [("tensorboard", TensorBoardLog), ("wandb", WandbLog), ("mlflow", MlflowLog)],
)
def test_a_logger_whose_package_is_missing_says_what_to_install(
    package: str, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if package == "tensorboard" else package, None)
    with pytest.raises(ConfigError, match=rf"callbacks: {package} is not installed .*pip install {package}\."):
        make()


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_shows_every_run_of_a_sweep(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    given = {**GIVEN, "engine": "vector", "sweep": {"algorithm.lr": [0.1, 0.2]}}
    done = atoll.sweep.run(given, tmp_path / "sweep", callbacks=[TensorBoardLog(tmp_path / "board")])
    for run in done.runs:
        board = EventAccumulator(str(tmp_path / "board" / run.folder.name))
        board.Reload()
        assert [(e.step, e.value) for e in board.Scalars("accuracy")] == [
            (2, pytest.approx(recorded(run)[0])),
            (4, pytest.approx(recorded(run)[1])),
        ]
        assert board.Scalars("clients/loss/max")[-1].value == pytest.approx(run.final["clients"]["loss"]["max"])


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_every_run_of_a_sweep_with_its_settings(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    place = f"sqlite:///{tmp_path / 'mlflow.db'}"
    given = {**GIVEN, "engine": "vector", "sweep": {"algorithm.lr": [0.1, 0.2]}}
    done = atoll.sweep.run(given, tmp_path / "sweep", callbacks=[MlflowLog("mine", place)])
    client = mlflow.MlflowClient(place)
    found = {r.info.run_name: r for r in client.search_runs([client.get_experiment_by_name("mine").experiment_id])}
    for run, lr in zip(done.runs, ("0.1", "0.2"), strict=True):
        there = found[run.folder.name]
        assert (there.info.status, there.data.params["algorithm.lr"]) == ("FINISHED", lr)
        history = client.get_metric_history(there.info.run_id, "accuracy")
        assert [(m.step, m.value) for m in history] == [(2, recorded(run)[0]), (4, recorded(run)[1])]


@pytest.mark.filterwarnings("ignore")
def test_wandb_keeps_every_run_of_a_sweep_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    given = {**GIVEN, "engine": "vector", "sweep": {"algorithm.lr": [0.1, 0.2]}}
    log = WandbLog(project="mine", mode="offline", dir=str(tmp_path))
    done = atoll.sweep.run(given, tmp_path / "sweep", callbacks=[log])
    written = [path.read_bytes() for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb")]
    assert len(written) == 2
    for run in done.runs:
        mine = next(content for content in written if run.folder.name.encode() in content)
        assert all(repr(value).encode() in mine for value in recorded(run))
