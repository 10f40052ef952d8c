"""Several runs as one stack are what each would be alone, and each can go on alone."""

import json
import signal
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import atoll
from atoll.algorithms.fedavg import FedAvg
from atoll.core import Engine, Evaluate, Exchange, Message, Pending, Request, Train, Trained
from atoll.engines import Vector, measure_rows
from atoll.engines.evaluation import Measurement, measure_side_by_side
from atoll.errors import ConfigError, DivergenceError, RecordError
from atoll.experiment import Experiment
from atoll.runs import Run, run_together, silent, why_not_stackable
from atoll.runs.checkpoint_schedule import CheckpointSchedule
from atoll.runs.drivers import Asking
from atoll.runs.engine_setup import on_device
from atoll.runs.evaluate import evaluation_data
from atoll.runs.lockstep import Lane, lockstep
from atoll.testing.harness import federation
from atoll.testing.problems import network
from tests.support.every_round import EVERY_ROUND
from tests.support.marks import slow_but
from tests.support.other_models import OTHER_MODELS
from tests.support.stateless_engine import StatelessEngine


class Normed(nn.Module):
    """BatchNorm and, drawn with the weights, a projection that is never learned."""

    def __init__(self, inputs: tuple[int, ...], outputs: int, constant: bool = False, norm: bool = True) -> None:
        super().__init__()
        self.mix = nn.Linear(64, 12)
        self.norm = nn.BatchNorm1d(12) if norm else nn.Identity()
        self.out = nn.Linear(12, outputs)
        self.register_buffer("fixed", torch.randn(64, 64) if constant else torch.eye(64))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(self.norm(self.mix(x.flatten(1) @ self.fixed)).relu())
        return found


class GoneError(Exception):
    """What a test stops a run with."""


def experiment(**changes: Any) -> Experiment:
    given = {
        "rounds": 3,
        "data": "digits",
        "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5},
        "cohort": {"name": "fixed", "size": 4},
        "task": {"model": "linear"},
        "local": {"max_steps": 4},
        "algorithm": {"name": "fedavg", "lr": 0.1},
        "engine": "vector",
        **changes,
    }
    return Experiment.parse(given)


def normed(policy: str, **options: Any) -> dict[str, Any]:
    return {"model": {"name": f"{__name__}:Normed", **options}, "batch_norm": policy}


def noise(bound: Any, noise_multiplier: float) -> list[Any]:
    return [
        {"name": "top_k", "share": 0.3},
        "equal_weights",
        {"name": "clip_l2", "max_norm": bound},
        {"name": "gaussian_noise", "noise_multiplier": noise_multiplier},
    ]


def algorithm(name: str, **options: Any) -> dict[str, Any]:
    return {"algorithm": {"name": name, "lr": 0.1, **options}}


def seeds(*numbers: int, **changes: Any) -> list[dict[str, Any]]:
    return [{"seed": n, **changes} for n in numbers]


COSINE = {"name": "cosine", "start": 0.2, "over": 3, "end": 0.01}
PLATEAU = {"name": "plateau", "start": 0.1, "patience": 1, "threshold": 0.9}

INTEGERS = [{"name": "fixed_point", "step": 0.001}, {"name": "skellam", "noise_multiplier": 0.1}, "secure_sum"]
LOSING = {"protocol": "secagg", "dropout": 0.2, "threshold": 0.3}
BENCH = {"profile": "niid-bench"}

MLP = {"task": {"model": {"name": "mlp", "widths": [8]}}}
GKT = {"model": {"name": "gkt", "features": 4, "widths": [8]}}

KINDS: dict[str, list[dict[str, Any]]] = {
    "seeds and learning rates": [{"seed": s, **algorithm("fedavg", lr=lr)} for s in range(3) for lr in (0.1, 0.02)],
    "the pull of FedProx": [algorithm("fedprox", mu=mu) for mu in (0.0, 0.1, 1.0)],
    "control variates in memory": seeds(0, 1, **algorithm("scaffold")),
    "the server's step": [algorithm("fedadam", server_lr=x, tau=t) for x, t in ((0.01, 1e-3), (0.1, 1e-2))],
    "momentum": [algorithm("fedavg", optimizer={"name": "sgd", "momentum": m}) for m in (0.5, 0.9)],
    "residuals, bounds and noise": [{"transform": noise(b, m)} for b, m in ((0.1, 0.5), (1.0, 0.5), (COSINE, 0.1))],
    "bounds that move": [
        {"transform": ["equal_weights", {"name": "adaptive_clip", "initial_max_norm": b, "rate": r}, *INTEGERS]}
        for b, r in ((0.1, 0.5), (1.0, COSINE))
    ],
    "secure sums": [
        {"seed": s, "transform": ["equal_weights", {"name": "clip_l2", "max_norm": b}], "secure": LOSING}
        for s, b in ((0, 0.1), (1, 1.0))
    ],
    "privacy of examples": [
        {"seed": s, "local": {"max_steps": 3, "privacy": {"sampling": "poisson", **numbers}}}
        for s, numbers in enumerate(({"max_norm": 1.0, "epsilon": 4.0}, {"max_norm": 0.1, "noise_multiplier": 1.0}))
    ],
    "schedules": [algorithm("fedavg", lr=lr) for lr in (0.1, COSINE, PLATEAU)],
    "averaged statistics": seeds(0, 1, task=normed("average")),
    "statistics of a second pass": seeds(0, 1, task=normed("recompute")),
    "statistics that stay": seeds(0, 1, task=normed("local")),
    "dropout": seeds(0, 1, task={"model": {"name": "mlp", "widths": [8], "dropout": 0.3}}),
    "uneven clients": seeds(0, 1, 2, local={"epochs": 2, "batch": 16}, partition={"name": "power_law", "clients": 5}),
    "other partitions": [{"partition": {"name": "iid", "clients": n}, "cohort": "everyone"} for n in (4, 7)],
    "whole clients as one batch": seeds(0, 1, local={"batch": 0}),
    "cohorts that vary": seeds(0, 3, rounds=6, cohort={"name": "poisson", "size": 1.0}),
    "clients drawn twice": seeds(0, 1, cohort={"name": "fixed_with_replacement", "size": 6}),
    "models of their own": seeds(0, 1, **algorithm("ditto"), evaluate={"after": True, "holdout": 0.3}),
    "layers of their own": seeds(0, 1, **algorithm("fedper")),
    "all data in one place": seeds(0, 1, **algorithm("centralised")),
    "medians": seeds(0, 1, reducer="median"),
    "no server": seeds(0, 1, round="gossip"),
    "captured steps": seeds(0, 1, rounds=5, local={"epochs": 1, "batch": 8}),
    "chunks": seeds(0, 1, engine={"name": "vector", "chunk": 3}),
    "noise on the inputs": [
        {**algorithm("fedprox", mu=mu), "partition": {"name": "noise", "clients": 6, "level": 0.5, **BENCH}}
        for mu in (0.0, 1.0)
    ],
    "places of clients' own examples": [
        {**algorithm("fedgkt", kl_weight=w, server_kl_weight=w), "task": GKT, "local": {"batch": 16}}
        for w in (0.0, 1.0)
    ],
    **{f"round {name}": seeds(0, 1, **{**MLP, **more}) for name, more in EVERY_ROUND.items()},
    **{name: seeds(0, 1, **{**MLP, **more}) for name, more in OTHER_MODELS.items() if name != "fedgkt"},  # see "places"
    "other lengths": [{"rounds": 2}, {"rounds": 5, "evaluate": {"every": 2}}, {"rounds": 3, "seed": 4}],
}


def folders(at: Path, n: int) -> list[Path]:
    return [at / str(i) for i in range(n)]


def together(given: Sequence[Experiment], at: Path, **options: Any) -> list[Run]:
    return run_together(given, folders(at, len(given)), **options)


def alone(given: Sequence[Experiment], at: Path) -> list[Run]:
    return [atoll.run(e, at / "alone" / str(i)) for i, e in enumerate(given)]


def near(a: Any, b: Any, where: str = "") -> None:
    """The same, up to the order of float sums."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for k in a:
            if k not in ("seconds", "model", "digest"):  # a digest is of every last bit
                near(a[k], b[k], f"{where}/{k}")
    elif isinstance(a, list):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            near(x, y, f"{where}/{i}")
    elif isinstance(a, Tensor):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
    elif isinstance(a, float):
        assert a == pytest.approx(b, rel=1e-5, abs=1e-6, nan_ok=True), where
    else:
        assert a == b, where


def same(a: Run, b: Run) -> None:
    assert a.status == b.status
    near(a.history, b.history)
    for name in ("clients.json", "checkpoint.pt", "model.pt"):
        assert (a.folder / name).exists() == (b.folder / name).exists()
    if a.status.startswith("failed"):
        return
    near(a.params, b.params)
    near(*(json.loads((r.folder / "clients.json").read_text()) for r in (a, b)))
    near(*(torch.load(r.folder / "checkpoint.pt", weights_only=True) for r in (a, b)))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[Train]]:
    """The stacks that runs are trained as."""
    stacks: list[list[Train]] = []
    together, train = Vector.submit_together, Vector.train_lanes

    def seen(engine: Vector, lanes: Sequence[Any]) -> list[Trained]:
        stacks.append([lane.request for lane in lanes])
        return train(engine, lanes)

    def watched(engine: Vector, lanes: Any) -> list[Any]:
        with monkeypatch.context() as m:
            m.setattr(Vector, "train_lanes", seen)
            return together(engine, lanes)

    monkeypatch.setattr(Vector, "submit_together", watched)
    return stacks


# --------------------------------------------------------------------------------------------- as if each were alone


QUICK = (
    "seeds and learning rates",
    "control variates in memory",
    "residuals, bounds and noise",
    "schedules",
    "statistics that stay",
    "other partitions",
    "cohorts that vary",
    "medians",
    "no server",
    "places of clients' own examples",
)


@pytest.mark.parametrize("kind", slow_but(KINDS, *QUICK))
def test_stacked_runs_are_what_each_is_alone(tmp_path: Path, kind: str) -> None:
    given = [experiment(**changes) for changes in KINDS[kind]]
    assert why_not_stackable(given) is None
    for a, b in zip(together(given, tmp_path), alone(given, tmp_path), strict=True):
        same(a, b)
        assert a.status == "finished"
        assert a.info["engine"]["choice"] == b.info["engine"]["choice"]
        assert f"one of {len(given)} runs in a stack" in a.info["engine"]["reason"]


def test_cohorts_that_vary_include_an_empty_one(tmp_path: Path) -> None:
    """Or the kind above would not show what it should."""
    sizes = [
        [e["cohort"]["size"] for e in r.history]
        for r in alone([experiment(**c) for c in KINDS["cohorts that vary"]], tmp_path)
    ]
    assert any((a == 0) != (b == 0) for a, b in zip(*sizes, strict=True))


def test_all_clients_of_all_runs_are_one_stack(tmp_path: Path, calls: list[list[Train]]) -> None:
    given = [experiment(**changes) for changes in KINDS["seeds and learning rates"]]
    together(given, tmp_path)
    assert [len(requests) for requests in calls] == [6, 6, 6]  # a call a round
    assert len({id(request.program) for requests in calls for request in requests}) == 1  # one program for all of them


@pytest.mark.slow
def test_batches_drawn_by_coins_do_not_part_a_stack(tmp_path: Path, calls: list[list[Train]]) -> None:
    given = [experiment(**changes) for changes in KINDS["privacy of examples"]]
    together(given, tmp_path)
    assert [len(requests) for requests in calls] == [2, 2, 2]


def test_runs_that_measure_at_other_times_train_together(tmp_path: Path, calls: list[list[Train]]) -> None:
    each = [{"every": 1, "after": True}, {"every": 2, "after": True}, {"every": 3}]
    together([experiment(rounds=6, evaluate=table) for table in each], tmp_path)
    assert {type(request.program.algorithm).__name__ for requests in calls for request in requests} == {"FedAvg"}
    assert [len(requests) for requests in calls] == [3] * 6


def test_models_with_other_constants_are_not_stacked(tmp_path: Path, calls: list[list[Train]]) -> None:
    """A template that is shared would bring one run's constants into the others."""
    given = [experiment(seed=s, task=normed("average", constant=True)) for s in (0, 1)]
    runs = together(given, tmp_path)
    assert {len(requests) for requests in calls} == {1}
    for a, b in zip(runs, alone(given, tmp_path), strict=True):
        same(a, b)


def test_the_data_are_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = atoll.data.DATA["digits"]

    def digits() -> Any:
        asked.append(1)
        return real()

    monkeypatch.setitem(atoll.data.DATA, "digits", digits)
    together([experiment(seed=s) for s in range(3)], tmp_path)
    assert len(asked) == 1


def test_measuring_side_by_side_is_measuring_each() -> None:
    setups = [atoll.experiment.setup.set_up(experiment(seed=s), "cpu") for s in range(3)]
    data = replace(evaluation_data(setups[0], *on_device(setups[0])), batch=32)
    rows = [torch.arange(len(data.columns["y"])), torch.tensor([5, 3, 9]), torch.arange(70).flip(0)]
    asked = [
        Measurement(data.columns, s.model, r, np.zeros(len(r), np.int64), 1) for s, r in zip(setups, rows, strict=True)
    ]
    for one, columns in zip(asked, measure_side_by_side(data, asked), strict=True):
        wanted = measure_rows(data, one, one.rows)
        assert columns.keys() == wanted.keys()
        for k in columns:
            np.testing.assert_allclose(columns[k], wanted[k], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["models of their own", "statistics of a second pass", "no server", "other lengths"])
def test_runs_that_are_promised_and_measured_side_by_side_are_what_each_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    given = [experiment(**changes) for changes in KINDS[kind]]
    whole = alone(given, tmp_path)
    monkeypatch.setattr(Vector, "defers", True)  # as on a GPU
    measured: list[int] = []
    together_, of = Vector._evaluate_together, lambda lanes: measured.append(len(lanes))
    monkeypatch.setattr(Vector, "_evaluate_together", lambda self, lanes: of(lanes) or together_(self, lanes))
    for a, b in zip(together(given, tmp_path), whole, strict=True):
        same(a, b)
    assert max(measured) == len(given)


def test_the_runs_of_a_stack_share_the_time_of_their_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharing: list[int] = []
    monkeypatch.setattr(CheckpointSchedule, "turn", lambda self, done: bool(sharing.append(len(self.sharing.runs))))
    together([experiment(rounds=r) for r in (3, 3, 5)], tmp_path)
    assert sharing == [3] * 6 + [1] * 2  # those that ended share it no more


@pytest.mark.gpu
def test_on_a_gpu_they_are_stacked_and_measured_side_by_side(tmp_path: Path, calls: list[list[Train]]) -> None:
    given = [experiment(seed=s, engine="auto", task=normed("recompute"), **algorithm("scaffold")) for s in range(3)]
    runs = together(given, tmp_path, device="cuda")
    assert {len(requests) for requests in calls} == {3}
    assert {type(requests[0].program.algorithm).__name__ for requests in calls} == {"Scaffold", "Statistics"}
    for i, (a, e) in enumerate(zip(runs, given, strict=True)):
        b = atoll.run(e, tmp_path / "alone" / str(i), device="cuda")
        torch.testing.assert_close(a.params, b.params, rtol=1e-3, atol=1e-4)
        assert a.final["loss"] == pytest.approx(b.final["loss"], rel=1e-3)


# --------------------------------------------------------------------------------------------------- one leaves early


def test_a_run_that_stops_early_leaves_the_others(tmp_path: Path, calls: list[list[Train]]) -> None:
    stop = {"patience": 50, "metric": "accuracy", "target": 0.6}
    given = [experiment(rounds=5, stop=stop, **algorithm("fedavg", lr=lr)) for lr in (0.5, 1e-4, 2e-4)]
    runs = together(given, tmp_path)
    assert runs[0].status.startswith("stopped early: accuracy reached")
    assert [r.status for r in runs[1:]] == ["finished"] * 2
    assert [len(requests) for requests in calls] == [3] * len(runs[0].history) + [2] * (5 - len(runs[0].history))
    for a, b in zip(runs, alone(given, tmp_path), strict=True):
        same(a, b)


def test_a_run_that_diverges_leaves_the_others(tmp_path: Path) -> None:
    given = [experiment(**algorithm("fedavg", lr=lr)) for lr in (0.1, 1e38, 0.05)]
    runs = together(given, tmp_path)
    assert [r.status for r in runs] == ["finished", "failed: DivergenceError", "finished"]
    assert isinstance(runs[1].error, DivergenceError)
    assert "Lower algorithm.lr" in str(runs[1].error)
    assert runs[0].error is runs[2].error is None
    with pytest.raises(DivergenceError) as e:
        atoll.run(given[1], tmp_path / "bad")
    assert str(e.value) == str(runs[1].error)
    same(runs[1], Run(tmp_path / "bad"))
    for i in (0, 2):
        same(runs[i], atoll.run(given[i], tmp_path / f"good {i}"))


def test_clients_that_diverge_are_dropped_from_their_own_run(tmp_path: Path) -> None:
    given = [experiment(on_divergence="drop", **algorithm("fedavg", lr=lr)) for lr in (0.1, 1e38)]
    runs = together(given, tmp_path)
    assert runs[1].history[0]["dropped"]
    assert "dropped" not in runs[0].history[0]
    for a, b in zip(runs, alone(given, tmp_path), strict=True):
        same(a, b)


def test_what_is_no_fault_of_the_experiment_is_raised_when_the_others_are_done(tmp_path: Path) -> None:
    given = [experiment(seed=s) for s in range(3)]
    with pytest.raises(GoneError):
        together(given, tmp_path, watch=[silent, stopping(1), silent])
    assert [Run(f).status for f in folders(tmp_path, 3)] == ["finished", "failed: GoneError", "finished"]


def stopping(at: int) -> Callable[..., None]:
    def watch(done: int, rounds: int, entry: object) -> None:
        if done == at:
            raise GoneError

    return watch


# ----------------------------------------------------------------------------------------------------- and come back

LONG: dict[str, Any] = {
    "rounds": 6,
    "checkpoint": {"every": 2},
    "algorithm": {"name": "scaffold", "lr": 0.1},
    "transform": [{"name": "top_k", "share": 0.3}],
}


def interrupting(times: int, at: int = 3) -> Callable[..., None]:
    """Ctrl-C comes at the end of this round."""

    def watch(done: int, rounds: int, entry: object) -> None:
        if done == at:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)  # heard before the next line: none is pending when another comes

    return watch


@pytest.mark.slow
def test_an_interrupt_stops_all_and_all_go_on(tmp_path: Path) -> None:
    given = [experiment(seed=s, **LONG) for s in range(3)]
    before = signal.getsignal(signal.SIGINT)
    halves = together(given, tmp_path, watch=[silent, interrupting(1), silent])
    assert [r.status for r in halves] == ["interrupted"] * 3
    assert all(3 <= len(r.history) < 6 for r in halves)
    assert signal.getsignal(signal.SIGINT) is before
    whole = alone(given, tmp_path)
    runs = together(given, tmp_path, resume=True)
    for a, b in zip(runs, whole, strict=True):
        same(a, b)
        assert a.info["started"] == halves[runs.index(a)].info["started"]


@pytest.mark.slow
def test_a_second_interrupt_does_not_wait_and_leaves_no_thread(tmp_path: Path) -> None:
    given = [experiment(seed=s, **LONG) for s in range(3)]
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        together(given, tmp_path, watch=[silent, interrupting(2), silent])
    assert set(threading.enumerate()) <= before
    assert [Run(f).status for f in folders(tmp_path, 3)] == ["interrupted"] * 3
    for a, b in zip(together(given, tmp_path, resume=True), alone(given, tmp_path), strict=True):
        same(a, b)


@pytest.mark.slow
def test_one_run_goes_on_alone_and_one_that_was_alone_joins(tmp_path: Path) -> None:
    given = [experiment(seed=s, **LONG) for s in range(3)]
    with pytest.raises(GoneError):
        atoll.run(given[2], tmp_path / "2", watch=stopping(5))
    half = run_together(given[:2], folders(tmp_path, 2), watch=[silent, interrupting(1)])
    assert [r.status for r in half] == ["interrupted"] * 2
    whole = alone(given, tmp_path)
    same(atoll.run(given[0], tmp_path / "0", resume=True), whole[0])
    runs = together(given, tmp_path, resume=True, watch=[pytest.fail, silent, silent])
    for a, b in zip(runs, whole, strict=True):
        same(a, b)


@pytest.mark.slow
def test_a_run_that_had_another_engine_goes_on_with_it(tmp_path: Path, calls: list[list[Train]]) -> None:
    given = [experiment(seed=s, **{**LONG, "engine": "auto"}) for s in range(3)]
    with pytest.raises(GoneError):
        atoll.run(given[1], tmp_path / "1", watch=stopping(3))
    info = json.loads((tmp_path / "1" / "run.json").read_text())
    info["engine"] = {"name": "threads", "reason": "", "choice": {"name": "threads", "workers": 1}}
    (tmp_path / "1" / "run.json").write_text(json.dumps(info))
    for name in ("0", "2"):  # two to be stacked
        with pytest.raises(GoneError):
            atoll.run(given[int(name)], tmp_path / name, watch=stopping(3))
        info = json.loads((tmp_path / name / "run.json").read_text())
        info["engine"]["choice"] = {"name": "vector", "chunk": 4, "capture": True}
        (tmp_path / name / "run.json").write_text(json.dumps(info))
    runs = together(given, tmp_path, resume=True)
    assert [r.status for r in runs] == ["finished"] * 3
    assert [r.info["engine"]["choice"]["name"] for r in runs] == ["vector", "threads", "vector"]
    assert {len(requests) for requests in calls} == {2}
    for a, b in zip(runs, alone(given, tmp_path), strict=True):
        same(a, b)


def fastest(name: str) -> Any:
    """As if this engine had been measured to be the fastest."""
    return patch("atoll.engines.autotune.measure", lambda engines, _: {n: 1.0 if n == name else 9.0 for n in engines})


@pytest.mark.parametrize("name", ["vector", "threads"])
def test_on_a_cpu_they_are_stacked_if_one_would_be(tmp_path: Path, calls: list[list[Train]], name: str) -> None:
    given = [experiment(seed=s, engine="auto", task=normed("average", norm=False)) for s in (0, 1)]
    with fastest(name):
        runs, whole = together(given, tmp_path), alone(given, tmp_path)
    assert [r.info["engine"]["name"] for r in runs] == [name] * 2
    assert all(("one after the other" in r.info["engine"]["reason"]) == (name == "threads") for r in runs)
    assert bool(calls) == (name == "vector")
    for a, b in zip(runs, whole, strict=True):
        same(a, b)


@fastest("threads")
def test_an_interrupt_between_runs_begins_no_other(tmp_path: Path) -> None:
    given = [experiment(seed=s, engine="auto", task=normed("average", norm=False)) for s in range(3)]
    with pytest.raises(KeyboardInterrupt):
        together(given, tmp_path, watch=[silent, interrupting(1, at=2), pytest.fail])
    assert [Run(f).status for f in folders(tmp_path, 2)] == ["finished", "interrupted"]
    assert not (tmp_path / "2").exists()
    with pytest.raises(KeyboardInterrupt):  # in a run's last round: it is done, but no other may begin
        together(given, tmp_path, resume=True, watch=[pytest.fail, interrupting(1, at=3), pytest.fail])
    assert [Run(f).status for f in folders(tmp_path, 2)] == ["finished", "finished"]
    half = together(given, tmp_path, resume=True, watch=[pytest.fail, pytest.fail, interrupting(1, at=2)])
    assert [r.status for r in half] == ["finished", "finished", "interrupted"]
    assert [r.status for r in together(given, tmp_path, resume=True)] == ["finished"] * 3


# ------------------------------------------------------------------------------------------------------------ refused

REFUSED: dict[str, dict[str, Any]] = {
    "data.name": {"data": "breast_cancer"},
    "task.model": {"task": {"model": "mlp"}},
    "task.batch_norm": {"task": {"model": "linear", "batch_norm": "freeze"}},
    "local.privacy": {"local": {"max_steps": 4, "privacy": {"max_norm": 1.0, "noise_multiplier": 1.0}}},
    "local.batch": {"local": {"max_steps": 4, "batch": 16}},
    "round.name": {"round": "gossip"},
    "reducer.name": {"reducer": "median"},
    "engine.capture": {"engine": {"name": "vector", "capture": False}},
    "algorithm.name": {"algorithm": {"name": "fedsgd", "lr": 0.1}},
    "algorithm.optimizer": {"algorithm": {"name": "fedavg", "lr": 0.3, "optimizer": {"name": "sgd", "momentum": 0.9}}},
    "transform": {"transform": ["equal_weights"]},
    "partition": {"partition": {"name": "noise", "clients": 6, "level": 0.1}},
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_cannot_be_stacked_is_refused_by_its_key(tmp_path: Path, key: str) -> None:
    given = [experiment(), experiment(**REFUSED[key])]
    problem = why_not_stackable(given)
    assert problem is not None
    assert problem.startswith(f"{key}:")
    with pytest.raises(ConfigError) as e:
        together(given, tmp_path)
    assert str(e.value) == problem
    assert not list(tmp_path.iterdir())


def test_numbers_that_shape_the_program_are_told_apart() -> None:
    two = [experiment(transform=[{"name": "top_k", "share": s}]) for s in (0.1, 0.2)]
    assert str(why_not_stackable(two)).startswith("transform.0.share:")
    counted = [experiment(**algorithm("scaffold"), partition={"name": "iid", "clients": n}) for n in (4, 5)]
    assert str(why_not_stackable(counted)).startswith("partition.clients:")
    layered = {"name": "compose", "of": [{"name": "iid", "clients": 4}, {"name": "noise", "level": 0.1}]}
    assert str(why_not_stackable([experiment(partition=layered, seed=s) for s in (0, 1)])).startswith("partition:")
    assert why_not_stackable([experiment(partition=layered)] * 2) is None
    placed = [experiment(**algorithm("fedgkt"), task=GKT, seed=s) for s in (0, 1)]
    assert str(why_not_stackable(placed)).startswith("partition: feature noise, poisoned examples and places")
    assert str(why_not_stackable([experiment(engine="loop")] * 2)).startswith("engine.name: 'loop'")


def test_every_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    given = [experiment(seed=s) for s in (0, 1)]
    with pytest.raises(ConfigError, match="one is named twice"):
        run_together(given, [tmp_path / "a", tmp_path / "b" / ".." / "a"])
    with pytest.raises(ConfigError, match="1 for 2 experiments"):
        run_together(given, [tmp_path / "a"])
    atoll.run(given[0], tmp_path / "a")
    with pytest.raises(RecordError, match="holds a run already"):
        run_together(given, [tmp_path / "b", tmp_path / "a"])
    assert not (tmp_path / "b").exists()


# -------------------------------------------------------------------------------------------------------------- turns


class Upper(StatelessEngine):
    """Answers a word with its capitals. Words that begin alike can be answered as one; those with a "?" cannot."""

    name = "upper"

    def __init__(self) -> None:
        self.notes = []
        self.stacks: list[list[str]] = []
        self.own: list[str] = []
        self.fails: dict[str, BaseException] = {}

    def submit(self, request: Request) -> Pending[Any]:
        self.own.append(word(request))
        return Pending.done(self._answer(request))

    def signature(self, request: Request) -> Hashable:
        return None if "?" in word(request) else word(request)[0]

    def submit_together(self, lanes: Sequence[tuple[Engine, Request]]) -> list[Any]:
        self.stacks.append([word(request) for _, request in lanes])
        return [self._answer(request) for _, request in lanes]

    def _answer(self, request: Request) -> str:
        if word(request) in self.fails:
            raise self.fails[word(request)]
        return word(request).upper()


def ask(text: str) -> Request:
    return Exchange({0: Message(text, {})})


def word(request: Request) -> str:
    assert isinstance(request, Exchange)
    return request.outbox[0].kind


def run_of(*words: str, heard: list[Any], ends: BaseException | None = None) -> Asking[None]:
    """Asks one word after the other; what went wrong with one is heard, too, and ends it."""
    try:
        for text in words:
            answer = yield ask(text)
            heard.append(answer.result())
        if ends is not None:
            raise ends
    except BaseException as e:
        heard.append(e)
        raise


def runs_of(*words: Sequence[str], engine: Engine | None = None) -> tuple[list[Lane], list[list[Any]]]:
    heard: list[list[Any]] = [[] for _ in words]
    return [Lane(run_of(*w, heard=h), engine or Upper()) for w, h in zip(words, heard, strict=True)], heard


def test_runs_stop_at_every_question_and_go_on_with_its_answer() -> None:
    lanes, heard = runs_of(["a1", "b1"], ["a2"], [])
    lockstep(lanes, leader := Upper())
    assert heard == [["A1", "B1"], ["A2"], []]
    assert leader.stacks == [["a1", "a2"], ["b1"]]
    assert all(lane.asked is None and lane.error is None for lane in lanes)


def test_what_cannot_be_done_beside_others_is_done_by_the_runs_own_engine() -> None:
    lanes, heard = runs_of(["a?", "b"], ["a?", "b"])
    lockstep(lanes, leader := Upper())
    assert heard == [["A?", "B"]] * 2
    assert leader.stacks == [["b", "b"]]
    assert leader.own == []
    assert [lane.engine.own for lane in lanes if isinstance(lane.engine, Upper)] == [["a?"], ["a?"]]


def test_a_run_that_fails_alone_leaves_the_others() -> None:
    gone, (heard, rest) = GoneError(), ([], [])
    lanes = [
        Lane(run_of("a", heard=heard, ends=gone), Upper()),
        Lane(run_of("a", "b", "c", heard=rest), Upper()),
    ]
    lockstep(lanes, leader := Upper())
    assert [lane.error for lane in lanes] == [gone, None]
    assert heard == ["A", gone]
    assert rest == ["A", "B", "C"]
    assert leader.stacks == [["a", "a"], ["b"], ["c"]]


def test_a_run_that_fails_before_its_first_question_leaves_the_others() -> None:
    gone = GoneError()
    lanes, heard = runs_of(["a"], ["a"])
    lanes[0] = Lane(run_of(heard=[], ends=gone), Upper())
    lockstep(lanes, Upper())
    assert lanes[0].error is gone
    assert heard[1] == ["A"]


def test_what_goes_wrong_with_a_stack_is_raised_in_its_runs_where_they_wait() -> None:
    gone, leader = GoneError(), Upper()
    leader.fails["a1"] = gone
    lanes, heard = runs_of(["a1"], ["a2", "b"], ["b", "b"])
    lockstep(lanes, leader)
    assert heard == [[gone], [gone], ["B", "B"]]
    assert [lane.error for lane in lanes] == [gone, gone, None]


def test_a_run_may_go_on_after_an_answer_that_failed() -> None:
    heard: list[Any] = []

    def stubborn() -> Asking[None]:
        try:
            yield ask("a")
        except GoneError as e:
            heard.append(e)
        heard.append((yield ask("b")).result())

    leader, gone = Upper(), GoneError()
    leader.fails["a"] = gone
    lockstep([Lane(stubborn(), Upper())], leader)
    assert heard == [gone, "B"]


@pytest.mark.parametrize("inside", [True, False])
def test_an_interrupt_reaches_all_runs(inside: bool) -> None:
    """Whether it comes while an engine is at work or while a run is: every one gets to put its folder in order."""
    stop, leader = KeyboardInterrupt(), Upper()
    lanes, heard = runs_of(["a", "b", "c"], ["a", "b", "c"], ["a"])
    if inside:
        lanes[1] = Lane(run_of("a", heard=heard[1], ends=stop), Upper())
    else:
        leader.fails["b"] = stop
    with pytest.raises(KeyboardInterrupt) as raised:
        lockstep(lanes, leader)
    assert raised.value is stop
    assert heard[:2] == [["A", stop]] * 2
    assert [lane.error for lane in lanes[:2]] == [stop] * 2
    assert heard[2] == (["A"] if not inside else [stop])  # in its turn, or before it had one
    assert all(lane.asked is None for lane in lanes)


def test_measuring_comes_first_then_second_passes_then_training_so_that_all_meet_again() -> None:
    problem = network()
    made = federation(problem, FedAvg(problem.task, 0.1))
    train, second = made.request([0]), made.request([0], client_state="read")
    order, answers = [], []

    class Told(Upper):
        def signature(self, request: Request) -> Hashable:
            return type(request)

        def submit_together(self, lanes: Sequence[tuple[Engine, Request]]) -> list[Any]:
            order.append("+".join(names[id(request)] for _, request in lanes))
            return list(lanes)

    measure = Evaluate("test", torch.arange(1))
    names = {id(train): "train", id(second): "second", id(measure): "measure"}

    def run(*requests: Request) -> Asking[None]:
        for request in requests:
            answers.append((yield request))

    runs = [(train, train), (train, measure, train), (train, second, measure, train)]
    lockstep([Lane(run(*requests), Told()) for requests in runs], Told())
    assert order == ["train+train+train", "measure", "second", "measure", "train+train+train"]
    assert len(answers) == 9
