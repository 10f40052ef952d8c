"""The same experiment gives the same model on every engine, and what plain PyTorch gives."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
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
from atoll.algorithms.optimizers import sgd
from atoll.algorithms.scaffold import Scaffold
from atoll.core import Exchange, extract
from atoll.data import Partition, Same
from atoll.engines import Loop, RowStore, Threads, Vector
from atoll.engines.capture import Captured
from atoll.engines.program import ClientSteps
from atoll.engines.vector import stacked
from atoll.engines.vector.inputs import INFO, Inputs, Plans
from atoll.engines.vector.ragged import active, blocks
from atoll.errors import DivergenceError, TrainingError
from atoll.reducers import Collect
from atoll.testing.assertions import distance
from atoll.testing.harness import CPU, device_data, federation
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
            {"name": "clip_l2", "max_norm": 1.0},
            {"name": "gaussian_noise", "noise_multiplier": 0.1},
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


class Reader(nn.Module):
    """Reads a picture row by row: what it saw last, and what it remembers."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTM(6, 5, 2, batch_first=True, dropout=dropout), nn.Linear(15, 3)

    def forward(self, x: Tensor) -> Tensor:
        out, (h, c) = self.cell(x[:, 0])
        return self.out(torch.cat([out[:, -1], h[0], c[1]], 1))


def test_an_lstm_of_torchs_is_stacked_and_gives_what_plain_pytorch_gives(tmp_path: Path) -> None:
    truth = plain_fedavg(seeded(Reader), 3, 0.05, 0.9)
    for engine in ("vector", "loop"):
        run = simulate(seeded(Reader), tmp_path / engine, engine, rounds=3, cohort=None, shuffle=False)
        assert run.info["engine"]["name"] == engine
        assert distance(run.params, truth) < 1e-5


def test_dropout_between_an_lstms_layers_is_the_same_on_every_engine(tmp_path: Path) -> None:
    loop, stack = (
        simulate(seeded(partial(Reader, 0.5)), tmp_path / engine, engine, rounds=2) for engine in ("loop", "vector")
    )
    assert stack.info["engine"]["name"] == "vector"
    assert distance(stack.params, loop.params) < 1e-5
    without = simulate(seeded(Reader), tmp_path / "without", "vector", rounds=2)
    assert distance(stack.params, without.params) > 1e-4


# Models that cannot be stacked.


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTM(6, 5, batch_first=True, bidirectional=True), nn.Linear(10, 3)

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


# Several requests at once.


@pytest.mark.parametrize("algorithm", ["FedAvg", "SCAFFOLD", "FedProx"])
def test_requests_side_by_side_give_what_each_gives_alone(algorithm: str) -> None:
    problem = network()
    made = {"FedAvg": FedAvg, "SCAFFOLD": Scaffold, "FedProx": FedProx}[algorithm]
    options = {"population": 6} if algorithm == "SCAFFOLD" else {"mu": 0.3} if algorithm == "FedProx" else {}
    alone, beside = (
        [federation(problem, made(problem.task, lr, **options), partial(Vector, chunk=4)) for lr in (0.05, 0.1, 0.2)]
        for _ in range(2)
    )
    leader = beside[0].engine.leading([f.engine for f in beside])
    for _ in range(2):  # the second time clients have a state
        cohorts = [[1, 3, 4], [0], [5, 2, 1, 0]]
        lanes = [(f.engine, f.request(ids)) for f, ids in zip(beside, cohorts, strict=True)]
        assert len({engine.signature(request) for engine, request in lanes}) == 1
        together = leader.submit_together(lanes)
        for f, ids, result in zip(alone, cohorts, together, strict=True):
            expected = f.engine.run(f.request(ids))
            assert distance(result.partial.mean(), expected.partial.mean()) < 1e-6
            assert torch.allclose(result.loss, expected.loss, atol=1e-6)
            assert result.order.tolist() == expected.order.tolist()
        for f, g in zip(alone, beside, strict=True):
            assert distance(f.rows(), g.rows()) < 1e-6


def test_only_requests_that_differ_in_numbers_have_one_signature() -> None:
    problem = network()

    def signature(algorithm: Any, ids: list[int], **more: Any) -> Any:
        made = federation(problem, algorithm, Vector)
        return made.engine.signature(made.request(ids, **more))

    truth = signature(FedAvg(problem.task, 0.1), [0, 1])
    assert truth == signature(FedAvg(problem.task, 0.2), [5, 4, 3])
    others = [
        signature(FedAvg(problem.task, 0.1, sgd(momentum=0.9)), [0, 1]),
        signature(FedProx(problem.task, 0.1, mu=0.1), [0, 1]),
        signature(FedAvg(problem.task, 0.1), [0, 1], client_state="read"),
        signature(FedAvg(problem.task, 0.1), [0, 1], max_steps=0),
    ]
    assert len({truth, *others}) == 5
    loop = federation(problem, FedAvg(problem.task, 0.1), Loop)
    assert loop.engine.signature(loop.request([0, 1])) is None


def test_the_engine_that_leads_takes_as_few_at_a_time_as_the_one_that_takes_fewest() -> None:
    problem = network()
    engines = [federation(problem, FedAvg(problem.task, 0.1), partial(Vector, chunk=n)).engine for n in (7, 3, 5)]
    assert engines[0].leading(engines).choice()["chunk"] == 3
    assert engines[0].choice()["chunk"] == 7


def test_a_chunk_that_does_not_fit_is_halved_and_the_result_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = network()
    first, second = (federation(problem, Scaffold(problem.task, 0.1, population=6), Vector) for _ in range(2))
    expected = first.engine.run(first.request([0, 1, 2, 3, 5]))
    train = Vector._train

    def small(self: Vector, lanes: Any, rows: torch.Tensor) -> Any:
        if len(rows) > 2:
            raise torch.cuda.OutOfMemoryError("no")
        return train(self, lanes, rows)

    monkeypatch.setattr(Vector, "_train", small)
    result = second.engine.run(second.request([0, 1, 2, 3, 5]))
    assert distance(result.partial.mean(), expected.partial.mean()) < 1e-6
    assert distance(first.rows(), second.rows()) < 1e-6
    assert second.engine.choice()["chunk"] == 2
    assert second.engine.notes == [
        "chosen by name",
        "out of memory with 5 clients at a time, so 3",
        "out of memory with 3 clients at a time, so 2",
    ]
    monkeypatch.setattr(Vector, "_train", lambda *_: (_ for _ in ()).throw(torch.cuda.OutOfMemoryError("no")))
    with pytest.raises(TrainingError, match="one client alone does not fit"):
        second.engine.run(second.request([0, 1]))


# What clients keep.


@pytest.mark.parametrize("engine", [Loop, Vector, Threads])
def test_client_state_is_updated_read_or_not_there(engine: Any) -> None:
    problem = network()
    made = federation(problem, Scaffold(problem.task, 0.1, population=6), engine)
    made.run([1, 3])
    before = tree.digest(made.rows())
    read = made.engine.run(made.request([3, 4], client_state="read"))
    assert tree.digest(made.rows()) == before
    assert made.store.touched.nonzero().flatten().tolist() == [1, 3]
    update = made.engine.run(made.request([3, 4], client_state="update"))
    assert tree.digest(read.partial.value) == tree.digest(update.partial.value)
    assert made.store.touched.nonzero().flatten().tolist() == [1, 3, 4]
    assert tree.digest(made.rows()) != before


@pytest.mark.parametrize("engine", [Loop, Vector, Threads])
def test_a_program_without_client_state_touches_none(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = network()
    made = federation(problem, FedAvg(problem.task, 0.1), engine)
    request = made.request([3, 4], client_state="none")
    for name in ("read", "write"):
        monkeypatch.setattr(made.store, name, pytest.fail)
    assert bool(made.engine.run(request).finite.all())


@pytest.mark.parametrize("engine", [Loop, Vector, Threads])
def test_without_a_step_a_client_is_as_it_was_before_training(engine: Any) -> None:
    problem = network()
    made = federation(problem, FedAvg(problem.task, 0.1), engine, reducer=Collect())
    before = made.engine.run(made.request([5, 0], max_steps=0))
    assert distance(before.partial.updates.value["delta"], tree.zeros_like(before.partial.updates.value["delta"])) == 0
    assert before.loss.tolist() == [0.0, 0.0]
    one = made.engine.run(made.request([5, 0], max_steps=1))
    assert one.partial.info.steps.tolist() == [1.0, 1.0]
    whole = made.engine.run(made.request([5, 0]))
    assert sorted(whole.partial.info.steps.tolist()) == [1.0, 2.0]
    assert sorted(whole.partial.info.examples.tolist()) == [2.0, 6.0]
    assert float(one.partial.updates.value["delta"]["0.weight"].abs().max()) > 0


@pytest.mark.parametrize("engine", [Loop, Vector, Threads])
def test_a_reducer_is_told_of_its_clients(engine: Any) -> None:
    """Ids, examples, steps and staleness, in the order of the updates."""
    problem = network()
    made = federation(problem, FedAvg(problem.task, 0.1), engine, reducer=Collect())
    ids, stale = [5, 0, 3], torch.tensor([2.0, 0.0, 7.0])
    result = made.engine.run(made.request(ids, staleness=stale))
    info = result.partial.info
    assert info.id.tolist() == [ids[i] for i in result.order.tolist()]
    assert info.staleness.tolist() == stale[result.order].tolist()
    assert info.examples.tolist() == [float(len(problem.partition.of(int(i)))) for i in info.id]
    assert torch.equal(result.examples, torch.tensor([6.0, 2.0, 7.0]))
    assert result.rows == 15.0


def test_messages_between_parties_are_refused_with_advice() -> None:
    problem = network()
    made = federation(problem, FedAvg(problem.task, 0.1))
    with pytest.raises(TrainingError, match="messages between parties need a network"):
        made.engine.submit(Exchange({}))


def test_nothing_is_compiled_on_a_cpu_even_if_that_is_asked_for(tmp_path: Path) -> None:
    options = {**EXPERIMENTS["SCAFFOLD"], "rounds": 2}
    plain = simulate(convolutional(), tmp_path / "plain", {"name": "vector"}, **options)
    asked = simulate(convolutional(), tmp_path / "asked", {"name": "vector", "compile": True}, **options)
    assert tree.digest(plain.params) == tree.digest(asked.params)
    for device, compiling in ((CPU, False), (torch.device("cuda"), True)):
        data = replace(device_data(network(), FedAvg(network().task, 0.1)), device=device)
        assert Vector(data, RowStore({}, 6, CPU), compile=True)._compiling() == compiling


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
    request = made.request([1, 3, 4, 5])
    cohort = device_data(problem, made.algorithm).plan(request)
    steps = ClientSteps(request.program, Same())
    made_of = stacked.stacked(steps, per_client=False, many=False, capture=False)
    with torch.no_grad():
        carry = made_of.start(4, request.settings, request.sent, made.store.first)
        batch = (cohort.plan[:, 0].contiguous(), cohort.count[:, 0].contiguous(), torch.arange(8).reshape(4, 2))
        never, once = Captured(made_of.step, after=0), Captured(made_of.step, after=1)
        a = b = carry
        for _ in range(4):
            a, b = (
                f(request.settings, c, request.sent, made.store.first, problem.columns, *batch)
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
    a, b = made.engine.run(made.request([0, 1])).loss.tolist()
    assert abs(a - b) > 1e-4


def test_a_client_draws_the_same_alone_or_among_others() -> None:
    """Dropout is addressed by client and step, not by the order of the draws."""
    problem = network()
    losses = []
    for ids in ([4], [3, 4, 1], [0, 1, 2, 3, 4, 5]):
        made = federation(problem, FedAvg(problem.task, 0.05), Vector)
        losses.append(float(made.engine.run(made.request(ids)).loss[ids.index(4)]))
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)


@pytest.mark.parametrize("steps", [3, 5])
def test_one_buffer_carries_everything_the_host_tells_of_a_round(steps: int) -> None:
    g = torch.Generator().manual_seed(0)

    def whole(*shape: int) -> Tensor:
        return torch.randint(0, 2**40, shape, generator=g)

    info = {"id": whole(4), **{k: torch.rand(4, generator=g) for k in INFO[1:]}}
    given = Inputs({}, {}, {}, {}, info, whole(4, 2), whole(4, steps, 6), whole(4, steps), whole(4, steps, 2))
    plans = Plans(4, 8, 6, CPU)
    for _ in range(2):  # what a longer round left behind does not matter
        plans.fill(given)
        for name in ("plan", "count", "keys"):
            assert torch.equal(plans.there[name][:, :steps], getattr(given, name))
        assert torch.equal(plans.there["transform_keys"], given.transform_keys)
        assert plans.there["info"].keys() == info.keys()
        assert all(torch.equal(plans.there["info"][k], v) for k, v in info.items())
        assert {plans.there["info"][k].dtype for k in INFO[1:]} == {torch.float32}
