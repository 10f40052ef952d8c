"""What a coalition is worth when it trains alone: an ordinary run in which only its clients can be reached.

Coalitions that are asked for together run as one stack. Every run has a folder, named by its experiment: nothing is
trained twice, and a stopped valuation goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.errors import AtollError, ConfigError
from atoll.experiment import Device, Experiment
from atoll.records import RunFolder, ended, read_runs
from atoll.runs import run, run_together, why_not_stackable

MOST = 16  # runs of one stack
Told = Callable[[int], None]  # so many more coalitions are valued


@dataclass
class TrainedCoalitions:
    """Values of coalitions by training them: the metric on the test data after the last round; higher is better."""

    experiment: Experiment
    n: int
    metric: str
    sign: float  # -1: lower is better
    folder: Path
    device: Device = "auto"
    told: Told = lambda count: None
    reused: int = 0  # trainings that were there already

    def __call__(self, coalitions: Sequence[int]) -> list[float]:
        experiments = [coalition_experiment(self.experiment, self.n, c) for c in coalitions]
        folders = [
            self.folder / f"{c:0{-(-self.n // 4)}x}-{e.digest()[:8]}"
            for c, e in zip(coalitions, experiments, strict=True)
        ]
        left = [(e, f) for e, f in zip(experiments, folders, strict=True) if not _over(f)]
        self.reused += len(coalitions) - len(left)
        self.told(len(coalitions) - len(left))
        for i in range(0, len(left), MOST):
            self._train(left[i : i + MOST])
            self.told(len(left[i : i + MOST]))
        return [self._value(folder) for folder in folders]

    def _train(self, part: Sequence[tuple[Experiment, Path]]) -> None:
        experiments, folders = [e for e, _ in part], [f for _, f in part]
        if len(part) > 1 and why_not_stackable(experiments) is None:
            with suppress(ConfigError):  # what cannot be one stack is run one by one, which says what is wrong
                run_together(experiments, folders, resume=True, device=self.device)
        for experiment, folder in part:
            if not _over(folder):
                run(experiment, folder, resume=RunFolder(folder).exists(), device=self.device, progress=False)

    def _value(self, folder: Path) -> float:
        values = read_runs([folder])[0].series(self.metric).values
        if not values.size:
            raise ConfigError(f"metric: the runs have no {self.metric!r} on test data, by which coalitions are valued.")
        return self.sign * float(values[-1])


def coalition_experiment(experiment: Experiment, n: int, coalition: int) -> Experiment:
    """The experiment with these clients only: the others are never available. Nobody at all: the model stays."""
    raw: dict[str, Any] = experiment.complete()
    here = [[coalition >> i & 1] for i in range(n)]
    size = raw["cohort"].get("size")
    raw["cohort"] = {"name": "available", "trace": here, **({} if size is None else {"size": int(size)})}
    raw["evaluate"] = {**raw["evaluate"], "every": experiment.rounds, "clients": 0, "after": False}
    raw["checkpoint"] = {"every": 0}
    raw.pop("stop", None)
    return Experiment.parse(raw)


def check_cohort(experiment: Experiment) -> None:
    """A coalition takes part by being available; cohorts that are drawn in other ways have no such meaning."""
    if experiment.cohort["name"] not in ("everyone", "fixed"):
        raise ConfigError(
            f"cohort.name: {experiment.cohort['name']!r} cannot be kept to a coalition of clients. Use 'everyone' or "
            "'fixed', for example --set cohort.name=everyone."
        )


def _over(folder: Path) -> bool:
    try:
        return RunFolder(folder).exists() and ended(RunFolder(folder).info)
    except AtollError:
        return False
