"""Schedules and early stopping: pure functions of the round and of the record."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau, StepLR

import atoll
from atoll import tree
from atoll.core import extract, resolve, schedules_in
from atoll.errors import ConfigError
from atoll.experiment import StopTable, Watched
from atoll.runs.stopping import Stopping
from atoll.schedules import SCHEDULES, Constant, Cosine, Follow, Plateau, Step, Warmup
from atoll.transforms import TRANSFORMS

FLAT = 5.0


def losses(values: Sequence[float | None], metric: str = "loss") -> list[dict[str, Any]]:
    return [{"round": i + 1, metric: v} for i, v in enumerate(values)]


def values(schedule: Any, rounds: int) -> list[float]:
    return [schedule.value(r, []) for r in range(rounds)]


def optimizer(lr: float) -> torch.optim.SGD:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=lr)


def torch_rates(make: Any, lr: float, rounds: int) -> list[float]:
    """The rates that one of torch's own schedulers gives."""
    o = optimizer(lr)
    scheduler, found = make(o), []
    for _ in range(rounds):
        found.append(o.param_groups[0]["lr"])
        o.step()
        scheduler.step()
    return found


def test_every_schedule_at_its_knob_s_zero_is_constant() -> None:
    still = [Step(0.3, every=1, factor=1.0), Cosine(0.3, over=7, end=0.3), Warmup(0.3, over=1)]
    for schedule in [*still, Plateau(0.3), Follow(0.3)]:
        assert values(schedule, 20) == values(Constant(0.3), 20), schedule
        assert not schedule.finished(losses([1.0] * 5))


def test_step_and_cosine_are_torch_s() -> None:
    steps = torch_rates(lambda o: StepLR(o, step_size=4, gamma=0.3), 0.2, 15)
    assert values(Step(0.2, every=4, factor=0.3), 15) == pytest.approx(steps, rel=1e-12)
    cosine = torch_rates(lambda o: CosineAnnealingLR(o, T_max=10, eta_min=0.05), 0.2, 11)
    assert values(Cosine(0.2, over=10, end=0.05), 11) == pytest.approx(cosine, rel=1e-9)
    assert values(Cosine(0.2, over=10, end=0.05), 15)[10:] == pytest.approx([0.05] * 5)


def test_a_warmup_rises_in_equal_steps_then_stays_or_falls_like_a_cosine() -> None:
    assert values(Warmup(0.4, over=4), 6) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    falling = values(Warmup(0.4, over=4, until=10, end=0.1), 12)
    assert falling[4:] == pytest.approx(values(Cosine(0.4, over=6, end=0.1), 8))


@pytest.mark.parametrize("better", ["lower", "higher"])
@pytest.mark.parametrize("seed", range(4))
def test_a_plateau_is_torch_s_reduce_on_plateau(better: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    series = (2 + draw.standard_normal(200).cumsum() * 0.02 + draw.standard_normal(200) * 0.1).clip(0.1).tolist()
    patience, threshold = int(draw.integers(1, 6)), float(draw.choice([0.0, 1e-4, 0.05]))
    ours = Plateau(0.5, factor=0.5, patience=patience, better=better, threshold=threshold, stop=0)
    o = optimizer(0.5)
    theirs = ReduceLROnPlateau(
        o, "min" if better == "lower" else "max", factor=0.5, patience=patience, threshold=threshold, eps=0.0
    )
    for r in range(200):
        assert ours.value(r, losses(series[:r])) == pytest.approx(o.param_groups[0]["lr"], rel=1e-9)
        theirs.step(series[r])
    assert ours.reductions(losses(series)) > 3  # or nothing was compared


def test_a_plateau_stops_training_at_the_fourth_reduction() -> None:
    plateau = Plateau(0.1, patience=2)  # the first value is the best; then every third bad one is one too many
    reductions = [plateau.reductions(losses([FLAT] * n)) for n in range(14)]
    assert reductions == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4]
    assert plateau.value(10, losses([FLAT] * 10)) == pytest.approx(1e-4)
    assert [plateau.finished(losses([FLAT] * n)) for n in (10, 12, 13)] == [False, False, True]
    assert not Plateau(0.1, patience=2, stop=0).finished(losses([FLAT] * 100))


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_null_is_no_improvement_for_a_plateau(better: str) -> None:
    plateau = Plateau(0.1, patience=1, better=better)
    for nothing in (None, math.nan):
        assert plateau.reductions(losses([nothing, FLAT, nothing, nothing])) == 1


def test_a_plateau_counts_evaluations_not_rounds() -> None:
    sparse = [{"round": i + 1, **({"loss": FLAT} if i % 5 == 4 else {})} for i in range(20)]
    assert Plateau(0.1, patience=2).reductions(sparse) == Plateau(0.1, patience=2).reductions(losses([FLAT] * 4)) == 1


def followed(schedule: Follow, seen: Sequence[float | None]) -> list[float]:
    """Its value before the first evaluation, and after each."""
    return [round(schedule.value(n, losses(seen[:n])), 6) for n in range(len(seen) + 1)]


def test_following_goes_up_with_a_worse_metric_and_down_with_better_ones_in_a_row() -> None:
    seen = [5.0, 6.0, 7.0, 6.0, 5.0, 5.0, 4.0]  # the first one is better than nothing
    assert followed(Follow(0.2), seen) == [0.2, 0.1, 0.2, 0.3, 0.2, 0.1, 0.1, 0.0]
    assert followed(Follow(0.2, patience=2), seen) == [0.2, 0.2, 0.3, 0.4, 0.4, 0.3, 0.3, 0.3]
    assert followed(Follow(0.2, better="higher"), [-s for s in seen]) == followed(Follow(0.2), seen)


def test_following_stays_between_zero_and_most() -> None:
    assert followed(Follow(0.1), [4.0, 3.0, 2.0]) == [0.1, 0.0, 0.0, 0.0]
    assert followed(Follow(0.8), [1.0, 2.0, 3.0, None, None])[-4:] == [0.8, 0.9, 1.0, 1.0]


def test_following_reads_evaluations_not_rounds() -> None:
    sparse = [{"round": 1, "loss": 5.0}, {"round": 2}, {"round": 3}, {"round": 4, "loss": 6.0}]
    assert Follow(0.5).value(4, sparse) == pytest.approx(0.5)
    assert Follow(0.5).value(3, sparse[:3]) == pytest.approx(0.4)


def test_a_schedule_is_found_resolved_and_extracted_wherever_a_number_stands() -> None:
    clip = TRANSFORMS["clip_l2"](max_norm=Step(4.0, every=1, factor=0.5))
    assert schedules_in([clip, (clip,)]) == [clip.max_norm, clip.max_norm]
    assert resolve((clip,), 2, [])[0].max_norm == 1.0
    assert float(extract(resolve(clip, 1, []))["max_norm"]) == 2.0
    assert resolve(resolve(clip, 2, []), 5, []).max_norm == 1.0  # a number stays what it is


def test_every_schedule_is_in_the_catalogue_and_runs_from_a_file(tmp_path: Path) -> None:
    entries: dict[str, dict[str, Any]] = {
        "constant": {},
        "step": {"every": 2, "factor": 0.5},
        "cosine": {"over": 3, "end": 0.01},
        "warmup": {"over": 2},
        "plateau": {"patience": 1, "metric": "train_loss"},
        "follow": {"change": 0.03, "metric": "train_loss"},
    }
    assert set(entries) == set(SCHEDULES)
    for name, options in entries.items():
        lr = {"name": name, "start": 0.1, **options}
        run = atoll.run(small(algorithm={"name": "fedavg", "lr": lr}, rounds=4), tmp_path / name)
        schedule = SCHEDULES[name](start=0.1, **options)
        wanted = [schedule.value(r, run.history[:r]) for r in range(4)]
        assert [e["settings"]["algorithm.lr"] for e in run.history] == pytest.approx(wanted, rel=1e-6), name


def test_a_scheduled_rate_of_a_constant_is_the_constant_run(tmp_path: Path) -> None:
    still = atoll.run(small(), tmp_path / "a").history
    lr = {"name": "step", "start": 0.1, "every": 1, "factor": 1.0}
    moved = atoll.run(small(algorithm={"name": "fedavg", "lr": lr}), tmp_path / "b").history
    assert [e["model"] for e in still] == [e["model"] for e in moved]
    lr = {"name": "step", "start": 0.1, "every": 1, "factor": 0.5}
    halved = atoll.run(small(algorithm={"name": "fedavg", "lr": lr}), tmp_path / "c").history
    assert [a["model"] == b["model"] for a, b in zip(still, halved, strict=True)] == [True, False, False]


def test_settings_of_optimizers_and_transforms_are_scheduled_and_recorded_too(tmp_path: Path) -> None:
    falling = {"name": "step", "start": 0.8, "every": 1, "factor": 0.5}
    algorithm = {"name": "fedprox", "lr": 0.1, "mu": falling, "optimizer": {"name": "sgd", "momentum": falling}}
    run = atoll.run(small(algorithm=algorithm, transform=[{"name": "clip_l2", "max_norm": falling}]), tmp_path / "r")
    for name in ("algorithm.mu", "algorithm.optimizer.momentum", "chain.transforms.0.max_norm"):
        assert [e["settings"].get(name) for e in run.history] == pytest.approx([0.8, 0.4, 0.2]), run.history[0]


def test_a_run_ends_when_its_plateau_does(tmp_path: Path) -> None:
    lr = {"name": "plateau", "start": 1e-9, "factor": 0.5, "patience": 1, "threshold": 0.5, "stop": 2}
    run = atoll.run(small(algorithm={"name": "fedavg", "lr": lr}, rounds=50), tmp_path / "r")
    assert run.status == "stopped early: the schedule has made its last reduction"
    assert len(run.history) == 1 + 2 * 2


def stopped_after(series: Sequence[float], lower: bool = False, **table: Any) -> int | None:
    watched = Watched("loss", "lower") if lower else Watched("accuracy", "higher")
    stop = Stopping(StopTable(**table), watched, [])
    return next((n for n in range(len(series) + 1) if stop(losses(series[:n], watched.metric))), None)


def test_early_stopping_waits_for_its_patience() -> None:
    series = [0.1, 0.5, 0.4, 0.5, 0.6, 0.6, 0.6, 0.6]
    assert stopped_after(series, patience=3) == 8
    assert stopped_after(series, patience=2) == 4
    assert stopped_after(series, patience=4) is None
    assert stopped_after(series, patience=2, threshold=0.45) == 3
    assert stopped_after([-v for v in series], patience=3, lower=True) == 8


def test_early_stopping_at_a_target() -> None:
    series = [0.1, 0.5, 0.9]
    assert stopped_after(series, target=0.5) == 2
    assert stopped_after(series, target=0.95) is None
    assert stopped_after(series, patience=1, target=0.95) is None
    assert stopped_after(series, target=0.5, lower=True) == 1


def test_a_value_that_is_no_number_is_no_improvement() -> None:
    stop = Stopping(StopTable(patience=2, metric="auroc"), Watched("auroc", "higher"), [])
    assert stop(losses([0.7, None, None], "auroc")) == "auroc has not improved for 2 evaluations"
    assert stop(losses([None, 0.7, None], "auroc")) is None


def test_a_run_stops_early_and_says_why(tmp_path: Path) -> None:
    run = atoll.run(small(rounds=30, stop={"patience": 30, "target": 0.3}), tmp_path / "target")
    assert run.status.startswith("stopped early: accuracy reached")
    assert run.final["accuracy"] >= 0.3 > max(e["accuracy"] for e in run.history[:-1])
    slow = {"name": "fedavg", "lr": 1e-9}
    run = atoll.run(small(rounds=30, algorithm=slow, stop={"patience": 3}), tmp_path / "patience")
    assert (len(run.history), run.status) == (4, "stopped early: accuracy has not improved for 3 evaluations")
    assert json.loads((run.folder / "run.json").read_text())["status"] == run.status
    assert run.params  # a run that stopped early has a model


def test_waiting_for_a_number_that_never_comes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"stop.metric: 'acuracy' is not measured. Did you mean 'accuracy'\?"):
        atoll.run(small(stop={"patience": 3, "metric": "acuracy"}), tmp_path / "r")
    lr = {"name": "plateau", "start": 0.1, "metric": "mse"}
    with pytest.raises(ConfigError, match="plateau, metric: 'mse' is not measured"):
        atoll.run(small(algorithm={"name": "fedavg", "lr": lr}), tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_loss_that_falls_is_an_improvement(tmp_path: Path) -> None:
    run = atoll.run(small(rounds=6, stop={"patience": 1, "metric": "loss"}), tmp_path / "loss")
    values = [e["loss"] for e in run.history]
    assert (run.status, len(values)) == ("finished", 6)
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(
    "metric", ["clients.accuracy.mean", "clients.loss.worst_decile", "after.accuracy.min", "train_loss"]
)
def test_any_number_of_the_record_can_end_a_run(tmp_path: Path, metric: str) -> None:
    target = 2.25 if "loss" in metric else 0.2
    given = small(rounds=30, evaluate={"holdout": 0.2, "after": True}, stop={"metric": metric, "target": target})
    run = atoll.run(given, tmp_path / "r")
    assert run.status.startswith(f"stopped early: {metric} reached")


def test_regression_stops_by_its_own_first_metric(tmp_path: Path) -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    fast = {"clients": [range(30), range(30, 60)], "rounds": 40, "engine": "vector", "seed": 1}
    model = nn.Linear(3, 1)
    run = atoll.simulate(
        model, (x, x.sum(1)), (x, x.sum(1)), algorithm={"name": "fedavg", "lr": 0.1}, stop={"target": 0.5}, **fast
    )
    assert run.status.startswith("stopped early: loss reached")


def test_a_direction_that_contradicts_the_metric_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"stop.better: 'loss' is better when it is lower. Write better = 'lower'."):
        atoll.run(small(stop={"patience": 3, "metric": "loss", "better": "higher"}), tmp_path / "r")
    lr = {"name": "plateau", "start": 0.1, "metric": "accuracy"}
    with pytest.raises(ConfigError, match="plateau, better: 'accuracy' is better when it is higher"):
        atoll.run(small(algorithm={"name": "fedavg", "lr": lr}), tmp_path / "r")


def test_what_can_end_a_run_is_listed_where_a_name_is_none_of_it(tmp_path: Path) -> None:
    listed = r"Measured: accuracy, loss, train_loss, clients.accuracy.mean, clients.loss.mean \(for mean also std, min"
    with pytest.raises(ConfigError, match=listed):
        atoll.run(small(evaluate={}, stop={"patience": 3, "metric": "clients.aurok"}), tmp_path / "r")


def test_the_best_model_is_kept_beside_the_last(tmp_path: Path) -> None:
    up = {"name": "fedavg", "lr": {"name": "step", "start": 0.3, "every": 4, "factor": 300.0}}
    run = atoll.run(small(rounds=6, algorithm=up), tmp_path / "r")
    values = [e["accuracy"] for e in run.history]
    best = values.index(max(values)) + 1
    assert best < 6
    assert run.best == {"round": best, "on": "accuracy", "value": max(values)} == run.info["best"]
    short = atoll.run(small(rounds=best, algorithm=up), tmp_path / "short")
    assert tree.digest(run.best_params) == tree.digest(short.params) != tree.digest(run.params)
    assert tree.digest(short.best_params) == tree.digest(short.params)


def test_a_private_run_chooses_no_model_by_what_it_read_from_clients(tmp_path: Path) -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    chain = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}, {"name": "gaussian_noise", "noise_multiplier": 1.0}]
    options: dict[str, Any] = {"clients": [range(30), range(30, 60)], "rounds": 2, "engine": "vector"}
    options |= {"algorithm": {"name": "fedavg", "lr": 0.1}, "transforms": chain, "out": tmp_path / "r"}
    run = atoll.simulate(nn.Linear(3, 2), (x, (x.sum(1) > 0).long()), **options)
    assert run.best is None
    assert not (run.folder / "best.pt").exists()


def test_a_start_that_the_setting_does_not_allow_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algorithm.lr.start: must be above 0"):
        atoll.Experiment.parse(small(algorithm={"name": "fedavg", "lr": {"name": "step", "start": 0, "every": 2}}))
    assert math.isclose(Step(1.0, every=2).value(2, []), 0.1)


def small(**changes: Any) -> dict[str, Any]:
    return {
        "rounds": 3,
        "data": "digits",
        "partition": {"name": "iid", "clients": 3},
        "task": {"model": "linear"},
        "local": {"max_steps": 3},
        "algorithm": {"name": "fedavg", "lr": 0.1},
        "engine": "loop",
        "evaluate": {"clients": 0},
        **changes,
    }
