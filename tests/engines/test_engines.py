"""The same experiment gives the same model on every engine, and what plain PyTorch gives."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import atoll
from atoll import rng, tree
from atoll.algorithms.fedavg import FedAvg
from atoll.algorithms.fedprox import FedProx
from atoll.algorithms.scaffold import Scaffold
from atoll.core.settings import extract
from atoll.data import Partition, Same
from atoll.engines import Loop, Threads, Vector
from atoll.engines.capture import Captured
from atoll.engines.program import Program
from atoll.engines.vector import stacked
from atoll.engines.vector.inputs import Inputs, Plans
from atoll.engines.vector.ragged import active, blocks
from atoll.errors import DivergenceError, TrainingError
from atoll.testing.assertions import distance
from atoll.testing.harness import CPU, federation
from atoll.testing.problems import network
from tests.support.marks import slow_but

SIZES = (5, 9, 3, 14, 8, 7)
ROWS = [list(rows) for rows in torch.arange(sum(SIZES)).split(list(SIZES))]
X, Y = rng.normal(rng.key("images"), (sum(SIZES), 1, 6, 6)), rng.bits(rng.key("labels"), (sum(SIZES),)) % 3

ENGINES: dict[str, Any] = {
    "vector": {"name": "vector"},
    "vector in chunks, never captured": {"name": "vector", "chunk": 2, "capture": False},
    "threads": {"name": "threads", "workers": 2},
}


def seeded(build: Callable[[], nn.Module], seed: int = 5) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def convolutional(dropout: float = 0.3) -> nn.Module:
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout2d(dropout),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(64, 3),
        )
    )


def simulate(model: nn.Module, out: Path, engine: Any, **changed: Any) -> atoll.Run:
    options: dict[str, Any] = {
        "clients": ROWS,
        "algorithm": {"name": "fedavg", "lr": 0.05, "optimizer": {"name": "sgd", "momentum": 0.9}},
        "rounds": 5,
        "cohort": 5,
        "batch": 4,
        "evaluate": {"clients": 0},
    }
    return atoll.simulate(model, (X, Y), engine=engine, out=out, **{**options, **changed})


EXPERIMENTS: dict[str, dict[str, Any]] = {
    "BatchNorm averaged": {"task": {"batch_norm": "average"}},
    "BatchNorm kept local": {"task": {"batch_norm": "local"}},
    "BatchNorm recomputed": {"task": {"batch_norm": "recompute"}},
    "BatchNorm frozen": {"task": {"batch_norm": "freeze"}},
    "GroupNorm instead": {"task": {"batch_norm": "group"}},
    "SCAFFOLD": {"algorithm": {"name": "scaffold", "lr": 0.05}},
    "SCAFFOLD, option I, statistics local": {
        "algorithm": {"name": "scaffold", "lr": 0.05, "option": "I"},
        "task": {"batch_norm": "local"},
    },
    "top_k with error feedback": {"transforms": [{"name": "top_k", "share": 0.2}]},
    "clipped, noisy, two epochs": {
        "transforms": [
            "equal_weights",
            {"name": "clip_l2", "bound": 1.0},
            {"name": "gaussian_noise", "multiplier": 0.1},
        ],
        "epochs": 2,
    },
    "a median": {"reducer": "median"},
}


@pytest.mark.parametrize("name", slow_but(EXPERIMENTS, "SCAFFOLD", "BatchNorm averaged", "top_k with error feedback"))
def test_the_same_experiment_gives_the_same_model_on_every_engine(name: str, tmp_path: Path) -> None:
    truth = simulate(convolutional(), tmp_path / "loop", "loop", **EXPERIMENTS[name])
    assert truth.info["engine"]["name"] == "loop"
    for i, (which, engine) in enumerate(ENGINES.items()):
        run = simulate(convolutional(), tmp_path / str(i), engine, **EXPERIMENTS[name])
        assert run.info["engine"]["name"] == engine["name"]
        assert distance(run.params, truth.params) < 1e-5, which
        for ours, theirs in zip(run.history, truth.history, strict=True):
            assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-4), which
            assert ours["cohort"]["ids"] == theirs["cohort"]["ids"]


@pytest.mark.slow
def test_a_captured_run_is_an_eager_one_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def eager_or_not(f: Any, compile: bool) -> Captured:
        made.append(Captured(f, after=2))
        return made[-1]

    options = {**EXPERIMENTS["SCAFFOLD"], "rounds": 4}
    eager = simulate(convolutional(), tmp_path / "eager", {"name": "vector", "capture": False}, **options)
    monkeypatch.setattr(stacked, "Captured", eager_or_not)
    captured = simulate(convolutional(), tmp_path / "captured", {"name": "vector"}, **options)
    assert sum(len(c.graphs) for c in made) >= 2
    assert tree.digest(captured.params) == tree.digest(eager.params)


def plain_fedavg(model: nn.Module, rounds: int, lr: float, momentum: float) -> dict[str, Tensor]:
    """FedAvg as anybody would write it: deep copies, torch.optim, the mean of the state dicts."""
    server = copy.deepcopy(model)
    for _ in range(rounds):
        states = []
        for rows in ROWS:
            client = copy.deepcopy(server).train()
            optimizer = torch.optim.SGD(client.parameters(), lr, momentum)
            for batch in torch.tensor(rows).split(4):
                optimizer.zero_grad()
                F.cross_entropy(client(X[batch]), Y[batch]).backward()
                optimizer.step()
            states.append((len(rows), client.state_dict()))
        mean = {
            k: sum(n * s[k].double() for n, s in states) / sum(SIZES)
            for k in states[0][1]
            if not k.endswith("num_batches_tracked")
        }
        server.load_state_dict({k: v.float() for k, v in mean.items()}, strict=False)
    return {k: v.detach() for k, v in server.state_dict().items() if not k.endswith("num_batches_tracked")}


@pytest.mark.parametrize("engine", ["loop", "vector", "threads"])
def test_fedavg_is_what_plain_pytorch_gives(engine: str, tmp_path: Path) -> None:
    """With nn.BatchNorm2d in training mode, drop_last=False, and statistics averaged like weights."""
    truth = plain_fedavg(convolutional(dropout=0.0), 5, 0.05, 0.9)
    run = simulate(convolutional(dropout=0.0), tmp_path / "run", engine, cohort=None, shuffle=False)
    ours = {k: v for k, v in run.params.items() if not k.endswith("num_batches_tracked")}
    assert ours.keys() == truth.keys()
    assert distance(ours, truth) < 1e-5
    for k in ("1.running_mean", "1.running_var"):
        assert distance({k: ours[k]}, {k: truth[k]}) < 1e-5


# Models that cannot be stacked.


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cell(x[:, 0])[0][:, -1])


class DrawsItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.dropout(x.flatten(1), 0.5, self.training))


class MovesItsBuffer(nn.Module):
    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(36, 3)
        self.register_buffer("centre", torch.zeros(36))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if self.training:
            with torch.no_grad():
                self.centre.mul_(0.9).add_(0.1 * x.mean(0))
        return self.out(x - self.centre)


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g


class OldAutograd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return Doubling.apply(self.out(x.flatten(1)))


STUBBORN = {
    Recurrent: "vmap cannot take this model",
    DrawsItself: "the model draws random numbers of its own",
    MovesItsBuffer: "the model changes its buffer 'centre' in place",
    OldAutograd: "vmap cannot take this model",
}


@pytest.mark.parametrize("build", STUBBORN)
@pytest.mark.parametrize("engine", ["auto", "vector"])
def test_a_model_that_cannot_be_stacked_runs_on_the_loop_and_says_why(
    build: type[nn.Module], engine: str, tmp_path: Path
) -> None:
    a, b = (simulate(seeded(build), tmp_path / str(i), engine, rounds=2) for i in range(2))
    assert a.info["engine"]["name"] == "loop"
    reason = a.info["engine"]["reason"]
    assert STUBBORN[build] in reason
    assert "\n" not in reason
    assert tree.digest(a.params) == tree.digest(b.params)


def test_a_buffer_that_a_module_changes_in_place_is_averaged_like_any_other(tmp_path: Path) -> None:
    truth = plain_fedavg(seeded(MovesItsBuffer), 3, 0.05, 0.9)
    run = simulate(seeded(MovesItsBuffer), tmp_path / "run", "auto", rounds=3, cohort=None, shuffle=False)
    assert distance({"c": run.params["centre"]}, {"c": truth["centre"]}) < 1e-5
    assert distance(run.params, truth) < 1e-5


@pytest.mark.parametrize("build", [Recurrent, OldAutograd])
def test_the_fallback_gives_what_plain_pytorch_gives(build: type[nn.Module], tmp_path: Path) -> None:
    truth = plain_fedavg(seeded(build), 3, 0.05, 0.9)
    run = simulate(seeded(build), tmp_path / "run", "auto", rounds=3, cohort=None, shuffle=False)
    assert run.info["engine"]["name"] == "loop"
    assert distance(run.params, truth) < 1e-5


def test_trying_the_stack_does_not_warn(tmp_path: Path) -> None:
    """Vmap runs what it has no rule for one by one, and asks people to report that; nobody should see it."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        simulate(seeded(Recurrent), tmp_path / "run", "vector", rounds=1)
    assert not [str(w.message)[:60] for w in seen]


# Several jobs at once.


@pytest.mark.parametrize("algorithm", ["FedAvg", "SCAFFOLD", "FedProx"])
def test_jobs_side_by_side_give_what_each_gives_alone(algorithm: str) -> None:
    problem = network()
    made = {"FedAvg": FedAvg, "SCAFFOLD": Scaffold, "FedProx": FedProx}[algorithm]
    options = {"population": 6} if algorithm == "SCAFFOLD" else {"mu": 0.3} if algorithm == "FedProx" else {}
    alone = [federation(problem, made(problem.task, lr, **options)) for lr in (0.05, 0.1, 0.2)]
    beside = [federation(problem, made(problem.task, lr, **options)) for lr in (0.05, 0.1, 0.2)]
    engine = Vector(problem.columns, Same(), torch.device("cpu"), chunk=4)
    for _ in range(2):  # the second time clients have memories
        cohorts = [[1, 3, 4], [0], [5, 2, 1, 0]]
        jobs = [f.job(ids) for f, ids in zip(beside, cohorts, strict=True)]
        together = engine.run_many(jobs)
        for f, ids, result in zip(alone, cohorts, together, strict=True):
            expected = engine.run(f.job(ids))
            assert distance(result.total.mean(), expected.total.mean()) < 1e-6
            assert torch.allclose(result.loss, expected.loss, atol=1e-6)
            assert result.order.tolist() == expected.order.tolist()
        for f, g in zip(alone, beside, strict=True):
            everyone = torch.arange(6)
            assert distance(f.memory.read(everyone), g.memory.read(everyone)) < 1e-6


def test_a_chunk_that_does_not_fit_is_halved_and_the_result_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = network()
    first, second = (federation(problem, Scaffold(problem.task, 0.1, population=6)) for _ in range(2))
    engine = Vector(problem.columns, Same(), torch.device("cpu"))
    expected = engine.run(first.job([0, 1, 2, 3, 5]))
    train = Vector._train

    def small(self: Vector, lanes: Any, rows: torch.Tensor) -> Any:
        if len(rows) > 2:
            raise torch.cuda.OutOfMemoryError("no")
        return train(self, lanes, rows)

    monkeypatch.setattr(Vector, "_train", small)
    got = engine.run(second.job([0, 1, 2, 3, 5]))
    assert distance(got.total.mean(), expected.total.mean()) < 1e-6
    assert distance(first.memory.read(torch.arange(6)), second.memory.read(torch.arange(6))) < 1e-6
    assert engine.chunk == 2
    assert "out of memory with 5 clients at a time, so 3; out of memory with 3 clients at a time, so 2" in engine.reason
    monkeypatch.setattr(Vector, "_train", lambda *_: (_ for _ in ()).throw(torch.cuda.OutOfMemoryError("no")))
    with pytest.raises(TrainingError, match="one client alone does not fit"):
        engine.run(second.job([0, 1]))


def test_nothing_is_compiled_on_a_cpu_even_if_that_is_asked_for(tmp_path: Path) -> None:
    options = {**EXPERIMENTS["SCAFFOLD"], "rounds": 2}
    plain = simulate(convolutional(), tmp_path / "plain", {"name": "vector"}, **options)
    asked = simulate(convolutional(), tmp_path / "asked", {"name": "vector", "compile": True}, **options)
    assert tree.digest(plain.params) == tree.digest(asked.params)
    assert not Vector({}, Same(), CPU, compile=True)._compiling()
    assert Vector({}, Same(), torch.device("cuda"), compile=True)._compiling()


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30))
def test_blocks_of_steps_cover_every_step_at_a_width_that_holds_everyone_at_work(steps: list[int]) -> None:
    at_work = active(torch.tensor(sorted(steps, reverse=True)))
    assert at_work == [sum(s > t for s in steps) for t in range(max(steps))]
    flat = [(width, ragged) for width, ragged, length in blocks(at_work, len(steps)) for _ in range(length)]
    assert len(flat) == len(at_work)
    for n, (width, ragged) in zip(at_work, flat, strict=True):
        assert n <= width <= len(steps)
        assert ragged == (n != width)
    assert all(1 <= length <= 8 for _, _, length in blocks(at_work, len(steps)))


@pytest.mark.parametrize("engine", ["loop", "vector", "threads"])
def test_bfloat16_learns_nearly_what_float32_learns_and_keeps_float32_weights(engine: str, tmp_path: Path) -> None:
    options = {**EXPERIMENTS["SCAFFOLD"], "rounds": 2}
    exact = simulate(convolutional(), tmp_path / "exact", {"name": engine}, **options)
    rough = simulate(convolutional(), tmp_path / "rough", {"name": engine, "precision": "bfloat16"}, **options)
    assert all(x.dtype == exact.params[k].dtype for k, x in rough.params.items())
    size = sum(x.double().norm() ** 2 for x in exact.params.values()) ** 0.5
    apart = sum((x.double() - rough.params[k].double()).norm() ** 2 for k, x in exact.params.items()) ** 0.5
    assert 0 < apart < 0.02 * size


# Capture.


def test_a_captured_step_is_the_eager_one_bit_for_bit() -> None:
    problem = network()
    made = federation(problem, FedAvg(problem.task, 0.05))
    job = made.job([1, 3, 4, 5])
    program = Program(job.algorithm, job.chain, Same())
    made_of = stacked.stacked(program, each=False, many=False, capture=False)
    with torch.no_grad():
        carry = made_of.start(4, job.settings, job.sent, made.memory.first)
        batch = (job.cohort.plan[:, 0].contiguous(), job.cohort.count[:, 0].contiguous(), torch.arange(8).reshape(4, 2))
        never, once = Captured(made_of.step, after=0), Captured(made_of.step, after=1)
        a = b = carry
        for _ in range(4):
            a, b = (
                f(job.settings, c, job.sent, made.memory.first, problem.columns, *batch)
                for f, c in ((never, a), (once, b))
            )
            assert tree.digest(a) == tree.digest(b)
    assert len(once.graphs) == 1
    assert not never.graphs


def test_a_new_value_of_a_setting_needs_no_new_capture() -> None:
    problem = network()
    captured = Captured(lambda s, x: tree.add_scaled(x, x, s["lr"]), after=1)
    x = problem.model["params"]
    for lr in (0.1, 0.2, 0.3):
        out = captured(extract(FedAvg(problem.task, lr)), x)
        assert distance(out, tree.scale(x, 1 + lr)) < 1e-6
    assert len(captured.graphs) == 1


def test_shapes_are_captured_one_by_one_up_to_a_limit() -> None:
    captured = Captured(lambda x: {"y": x["x"] * 2}, after=2, limit=2)
    for n in (1, 2, 3):
        for _ in range(3):
            assert torch.equal(captured({"x": torch.ones(n)})["y"], 2 * torch.ones(n))
    assert len(captured.graphs) == 2


# What is not finite.


class Squaring(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.flatten(1) ** 2)


def poisoned() -> Tensor:
    x = X.clone()
    x[ROWS[2][1]] = 1e30  # its square is not finite
    return x


@pytest.mark.parametrize("engine", ["loop", "vector", "threads"])
def test_divergence_stops_the_run_and_names_round_and_clients(engine: str, tmp_path: Path) -> None:
    model = seeded(Squaring)
    with pytest.raises(DivergenceError, match=r"round 1: .* client 2 is not finite. Lower algorithm.lr"):
        atoll.simulate(
            model,
            (poisoned(), Y),
            clients=ROWS,
            algorithm={"name": "fedavg", "lr": 0.05},
            rounds=3,
            engine=engine,
            out=tmp_path / "run",
        )


@pytest.mark.parametrize("engine", ["loop", "vector", "threads"])
def test_divergent_clients_can_be_left_out_and_are_recorded(engine: str, tmp_path: Path) -> None:
    model = seeded(Squaring)
    options: dict[str, Any] = {"algorithm": {"name": "scaffold", "lr": 0.05}, "batch": 4, "engine": engine}
    options |= {"rounds": 3, "evaluate": {"clients": 0}}
    run = atoll.simulate(model, (poisoned(), Y), clients=ROWS, on_divergence="drop", out=tmp_path / "all", **options)
    assert [entry["dropped"] for entry in run.history] == [[2]] * 3
    assert all(torch.isfinite(p).all() for p in run.params.values())
    assert all(entry["train_loss"] < 100 for entry in run.history)


def test_dropping_is_as_if_the_client_had_not_been_drawn(tmp_path: Path) -> None:
    model = seeded(Squaring)
    options: dict[str, Any] = {"algorithm": {"name": "fedavg", "lr": 0.05}, "batch": 4, "engine": "vector"}
    options |= {"rounds": 2, "evaluate": {"clients": 0}, "shuffle": False}
    dropped = atoll.simulate(model, (poisoned(), Y), clients=ROWS, on_divergence="drop", out=tmp_path / "a", **options)
    without = atoll.simulate(
        model, (X, Y), clients=[r for i, r in enumerate(ROWS) if i != 2], out=tmp_path / "b", **options
    )
    assert distance(dropped.params, without.params) < 1e-6


@pytest.mark.parametrize("engine", [Loop, Vector, Threads])
def test_clients_with_the_same_data_drop_different_features(engine: Any) -> None:
    problem = replace(network(), partition=Partition.from_lists([[0, 1, 2], [0, 1, 2]], overlap=True))
    made = federation(problem, FedAvg(problem.task, 0.05), engine)
    a, b = made.engine.run(made.job([0, 1])).loss.tolist()
    assert abs(a - b) > 1e-4


def test_a_client_draws_the_same_alone_or_among_others() -> None:
    """Dropout is addressed by client and step, not by the order of the draws."""
    problem = network()
    losses = []
    for ids in ([4], [3, 4, 1], [0, 1, 2, 3, 4, 5]):
        made = federation(problem, FedAvg(problem.task, 0.05), Vector)
        losses.append(float(made.engine.run(made.job(ids)).loss[ids.index(4)]))
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)


@pytest.mark.parametrize("steps", [3, 5])
def test_one_buffer_carries_everything_the_host_tells_of_a_round(steps: int) -> None:
    g = torch.Generator().manual_seed(0)

    def whole(*shape: int) -> Tensor:
        return torch.randint(0, 2**40, shape, generator=g)

    info = {"id": whole(4), "examples": torch.rand(4), "steps": torch.rand(4)}
    given = Inputs({}, {}, {}, {}, info, whole(4, 2), whole(4, steps, 6), whole(4, steps), whole(4, steps, 2))
    plans = Plans(4, 8, 6, CPU)
    for _ in range(2):  # what a longer round left behind does not matter
        plans.fill(given)
        for name in ("plan", "count", "keys"):
            assert torch.equal(plans.there[name][:, :steps], getattr(given, name))
        assert torch.equal(plans.there["own"], given.own)
        assert all(torch.equal(plans.there["info"][k], v) for k, v in info.items())
        assert plans.there["info"]["examples"].dtype == torch.float32
