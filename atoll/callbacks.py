"""Callbacks that write a run elsewhere while it goes on: `atoll.callbacks.TensorBoardLog()`.

Names are those of `Run.frame()`: "clients.accuracy.mean".
"""

from __future__ import annotations

import csv
import importlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll.errors import ConfigError
from atoll.records import INTERRUPTED, reached_end
from atoll.runs import Callback, LiveRun, flat


class CsvLog(Callback):
    """A CSV file with a line for every round, the numbers of the record as columns; log.csv in the run's folder."""

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = path

    def on_start(self, run: LiveRun) -> None:
        self.file = Path(self.path or run.folder / "log.csv")
        self.columns: list[str] = []
        self._write(run, "w")

    def on_round(self, run: LiveRun, entry: Mapping[str, Any]) -> None:
        self._write(run, "a" if set(flat(entry)) <= set(self.columns) else "w")

    def _write(self, run: LiveRun, mode: str) -> None:
        """The last round, or all of them again where one has a new column."""
        lines = [flat(entry) for entry in (run.history[-1:] if mode == "a" else run.history)]
        if mode == "w":
            self.columns = list(dict.fromkeys(name for line in lines for name in line))
        with self.file.open(mode, encoding="utf-8", newline="") as stream:
            table = csv.DictWriter(stream, self.columns)
            if mode == "w":
                table.writeheader()
            table.writerows(lines)


class TensorBoardLog(Callback):
    """Scalars for TensorBoard: in `folder`/<name of the run>, or tensorboard/ in the run's folder."""

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = folder
        _package("torch.utils.tensorboard", "tensorboard")

    def on_start(self, run: LiveRun) -> None:
        place = run.folder / "tensorboard" if self.folder is None else Path(self.folder) / run.folder.name
        board = _package("torch.utils.tensorboard", "tensorboard")
        self.writer = board.SummaryWriter(str(place), purge_step=len(run.history) + 1)  # what a resumed run does again

    def on_round(self, run: LiveRun, entry: Mapping[str, Any]) -> None:
        for name, value in _numbers(entry).items():
            self.writer.add_scalar(name.replace(".", "/"), value, entry["round"])

    def on_end(self, run: LiveRun, status: str) -> None:
        self.writer.close()


class WandbLog(Callback):
    """A run of Weights & Biases; `init` is what wandb.init takes: project="mine", mode="offline"."""

    def __init__(self, **init: Any) -> None:
        self.init = init
        _package("wandb", "wandb")

    def on_start(self, run: LiveRun) -> None:
        usual = {"name": run.folder.name, "config": run.experiment.complete(), "reinit": "create_new"}
        self.run = _package("wandb", "wandb").init(**{**usual, **self.init})

    def on_round(self, run: LiveRun, entry: Mapping[str, Any]) -> None:
        self.run.log(_numbers(entry), step=entry["round"])

    def on_end(self, run: LiveRun, status: str) -> None:
        self.run.summary["status"] = status
        self.run.finish(exit_code=0 if reached_end(status) else 1)


class MlflowLog(Callback):
    """A run of MLflow in this experiment of the server (or folder) at `tracking_uri`."""

    def __init__(self, experiment: str = "atoll", tracking_uri: str | None = None) -> None:
        self.experiment, self.tracking_uri = experiment, tracking_uri
        _package("mlflow", "mlflow")

    def on_start(self, run: LiveRun) -> None:
        self.client = _package("mlflow", "mlflow").MlflowClient(self.tracking_uri)
        known = self.client.get_experiment_by_name(self.experiment)
        place = self.client.create_experiment(self.experiment) if known is None else known.experiment_id
        self.run = self.client.create_run(place, run_name=run.folder.name).info.run_id
        for name, value in flat(run.experiment.complete()).items():
            self.client.log_param(self.run, name, value)

    def on_round(self, run: LiveRun, entry: Mapping[str, Any]) -> None:
        now, metric = int(1000 * time.time()), _package("mlflow.entities", "mlflow").Metric
        metrics = [metric(name, value, now, entry["round"]) for name, value in _numbers(entry).items()]
        self.client.log_batch(self.run, metrics=metrics)

    def on_end(self, run: LiveRun, status: str) -> None:
        ended = "FINISHED" if reached_end(status) else "KILLED" if status == INTERRUPTED else "FAILED"
        self.client.set_terminated(self.run, ended)


def _numbers(entry: Mapping[str, Any]) -> dict[str, float]:
    return {k: v for k, v in flat(entry).items() if type(v) in (int, float) and k != "round"}


def _package(name: str, install: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise ConfigError(f"callbacks: {install} is not installed ({e}). pip install {install}.") from e
