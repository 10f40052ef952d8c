"""The moving average of the server's model: beside the model, and nowhere else."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import atoll
from atoll.errors import ConfigError
from atoll.runs import LiveRun, run_together

GIVEN: dict[str, Any] = {
    "rounds": 5,
    "engine": "loop",
    "data": "digits",
    "partition": {"name": "iid", "clients": 3},
    "task": {"model": "linear"},
    "local": {"max_steps": 2},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "checkpoint": {"every": 1},
}
DECAY = 0.2
W, B = "head.weight", "head.bias"
AVERAGED = {**GIVEN, "server": {"ema": DECAY}}


class ByHand(atoll.Callback):
    """The slow way: from the models that a callback sees."""

    def __init__(self) -> None:
        self.average: dict[str, Tensor] = {}

    def on_start(self, run: LiveRun) -> None:
        self.average = run.params()

    def on_round(self, run: LiveRun, entry: Mapping[str, Any]) -> None:
        before = len(run.history) - 1
        decay = min(DECAY, (1 + before) / (10 + before))
        self.average = {k: decay * v + (1 - decay) * run.params()[k] for k, v in self.average.items()}


@pytest.mark.slow
def test_the_average_is_that_of_the_models_and_leaves_them_as_they_are(tmp_path: Path) -> None:
    by_hand = ByHand()
    run = atoll.run(AVERAGED, tmp_path / "ema", callbacks=[by_hand])
    plain = atoll.run(GIVEN, tmp_path / "plain")
    assert [e["model"] for e in run.history] == [e["model"] for e in plain.history]
    assert run.ema.keys() == run.params.keys()
    assert not torch.equal(run.ema[W], run.params[W])
    for name, value in by_hand.average.items():
        torch.testing.assert_close(run.ema[name], value)


def test_the_average_is_measured_like_a_model(tmp_path: Path) -> None:
    run = atoll.run(AVERAGED, tmp_path / "ema")
    plain = atoll.run(GIVEN, tmp_path / "plain")
    assert [e["accuracy"] for e in run.history] == [e["accuracy"] for e in plain.history]
    assert run.final["ema"].keys() == {"accuracy", "loss"}
    data = atoll.experiment.load_dataset(atoll.Experiment.parse(GIVEN))
    batch = data.decode(data.test)
    out = batch["x"].flatten(1) @ run.ema[W].T + run.ema[B]
    assert run.final["ema"]["accuracy"] == pytest.approx(float((out.argmax(1) == batch["y"]).float().mean()))


def test_an_average_is_resumed_bit_by_bit(tmp_path: Path) -> None:
    class Gone(atoll.Callback):
        def on_round(self, run: LiveRun, entry: Mapping[str, Any]) -> None:
            if entry["round"] == 3:
                raise KeyboardInterrupt

    whole = atoll.run(AVERAGED, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        atoll.run(AVERAGED, tmp_path / "half", callbacks=[Gone()])
    half = atoll.run(AVERAGED, tmp_path / "half", resume=True)
    assert all(torch.equal(half.ema[k], v) for k, v in whole.ema.items())
    assert half.final == whole.final


def test_runs_of_a_stack_keep_averages_of_their_own(tmp_path: Path) -> None:
    files = [{**AVERAGED, "engine": "vector", "server": {"ema": decay}} for decay in (0.01, 0.3)]
    alone = [atoll.run(f, tmp_path / f"{i}") for i, f in enumerate(files)]
    stacked = run_together(
        [atoll.Experiment.parse(f) for f in files], [tmp_path / f"stack{i}" for i in range(len(files))]
    )
    for one, beside in zip(alone, stacked, strict=True):
        torch.testing.assert_close(one.ema, beside.ema)


@pytest.mark.parametrize(
    "other", [{"round": "gossip"}, {"algorithm": {"name": "fedper", "lr": 0.1, "keep": ["head.bias"]}}]
)
def test_an_average_of_no_whole_model_is_refused(other: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"server.ema: .* no server holds a whole one"):
        atoll.run({**AVERAGED, **other}, tmp_path / "run")


def test_a_run_may_end_by_what_its_average_reaches(tmp_path: Path) -> None:
    run = atoll.run({**AVERAGED, "stop": {"metric": "ema.accuracy", "target": 0.01}}, tmp_path / "run")
    assert run.status.startswith("stopped early: ema.accuracy reached")
    with pytest.raises(ConfigError, match=r"stop.metric: 'ema.accuracy' is not measured"):
        atoll.run({**GIVEN, "stop": {"metric": "ema.accuracy", "target": 0.01}}, tmp_path / "other")


@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_a_decay_that_averages_nothing_is_refused(decay: float) -> None:
    with pytest.raises(ConfigError, match=r"server.ema"):
        atoll.Experiment.parse({**GIVEN, "server": {"ema": decay}})
