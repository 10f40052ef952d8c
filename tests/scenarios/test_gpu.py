"""On a GPU engines agree as they do on a CPU, and rounds are played on what they promise.

Tests of a GPU are skipped where there is none: run them with `pytest -m gpu`. Promises are also tested without one, by
a stack that defers its answers as it does on a GPU.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

import atoll
from atoll import rng, tree
from atoll.algorithms.fedavg import FedAvg
from atoll.algorithms.fednova import FedNova
from atoll.algorithms.fedsgd import FedSGD
from atoll.algorithms.scaffold import Scaffold
from atoll.algorithms.wrappers import Statistics
from atoll.core import Algorithm, Pending, Request, Round
from atoll.engines import Loop, Vector, arithmetic
from atoll.engines.program import lifted
from atoll.engines.vector import cuda_graphs as graphs
from atoll.engines.vector import ragged as widths
from atoll.engines.vector import tally, vector
from atoll.reducers import Collect, Mean
from atoll.rng import dp
from atoll.rounds import Central, Gossip, Recompute
from atoll.testing import harness
from atoll.testing.assertions import distance
from atoll.testing.harness import EngineFactory, Federation, federation
from atoll.testing.problems import Problem, network
from atoll.transforms.clip import l2_norm

gpu = pytest.mark.gpu


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(8 * 36, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(torch.relu(self.norm(self.conv(x)))).flatten(1))


def play(engine: object, device: str, algorithm: dict, rounds: int = 5, **options: object) -> torch.Tensor:
    torch.manual_seed(0)
    x, y = torch.randn(240, 1, 8, 8), torch.randint(0, 4, (240,))
    sizes = [7, 40, 12, 33, 5, 61, 20, 62]
    clients = list(torch.arange(240).split(sizes))
    run = atoll.simulate(
        Small(),
        (x, y),
        (x[:50], y[:50]),
        clients=clients,
        algorithm=algorithm,
        rounds=rounds,
        cohort=5,
        batch=8,
        engine=engine,
        device=device,
        **options,
    )
    return torch.cat([v.double().flatten() for v in run.params.values()])


def there(device: str) -> Problem:
    """A small network with BatchNorm and dropout, on a device."""
    problem = network()
    task: Any = problem.task
    model, columns = (tree.to(x, device) for x in (problem.model, problem.columns))
    return replace(problem, task=task.to(torch.device(device)), model=model, columns=columns)


def on(problem: Problem, algorithm: Algorithm, engine: EngineFactory, **options: Any) -> Federation:
    """A federation on the device of its problem."""
    with patch.object(harness, "CPU", problem.columns["x"].device):
        return federation(problem, algorithm, engine, **options)


EXACT = {"name": "vector", "precision": "float32"}
CASES = {
    "fedavg": {"algorithm": {"name": "fedavg", "lr": 0.05, "optimizer": {"name": "sgd", "momentum": 0.9}}},
    "one gradient of all rows": {"algorithm": {"name": "fedsgd", "lr": 0.05}},
    "scaffold": {"algorithm": {"name": "scaffold", "lr": 0.05}},
    "ditto": {"algorithm": {"name": "ditto", "lr": 0.05}},
    "fedadam": {"algorithm": {"name": "fedadam", "lr": 0.05, "optimizer": "adam"}},
    "noisy": {
        "algorithm": {"name": "fedprox", "lr": 0.05, "mu": 0.1},
        "transforms": [
            "equal_weights",
            {"name": "clip_l2", "max_norm": 1.0},
            {"name": "gaussian_noise", "noise_multiplier": 0.01},
        ],
    },
    "a bound that moves": {
        "algorithm": {"name": "fedavg", "lr": 0.05},
        "transforms": ["equal_weights", "adaptive_clip", {"name": "tree_noise", "noise_multiplier": 0.01}],
    },
    "noise that is taken back": {
        "algorithm": {"name": "fedavg", "lr": 0.05},
        "transforms": [
            "equal_weights",
            {"name": "clip_l2", "max_norm": 1.0},
            {"name": "banded_noise", "noise_multiplier": 0.01, "bands": 3, "noise_cohort": 5},
        ],
        "privacy": {"simulate": {"population": 100, "sampling": "cyclic_poisson"}},
    },
    "residues": {
        "algorithm": {"name": "fedavg", "lr": 0.05},
        "transforms": [
            "equal_weights",
            {"name": "clip_l2", "max_norm": 1.0},
            {"name": "fixed_point", "step": 1e-4},
            {"name": "skellam", "noise_multiplier": 0.01},
            "secure_sum",
        ],
    },
    "a secure sum": {
        "algorithm": {"name": "scaffold", "lr": 0.05},
        "transforms": ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}],
        "secure": {"protocol": "tests.support.summed_in_clear:SummedInClear", "dropout": 0.2, "threshold": 0.3},
    },
    "private before it leaves": {
        "algorithm": {"name": "fedavg", "lr": 0.05},
        "transforms": ["equal_weights", {"name": "clip_l2", "max_norm": 0.1}, {"name": "privunit", "epsilon": 50.0}],
    },
    "steps of each client": {"algorithm": {"name": "fednova", "lr": 0.05}},
    "sparse": {"algorithm": {"name": "fedavg", "lr": 0.05}, "transforms": [{"name": "top_k", "share": 0.3}]},
    "gossip": {"algorithm": {"name": "fedavg", "lr": 0.05}, "round": "gossip"},
    "median": {"algorithm": {"name": "fedavg", "lr": 0.05}, "reducer": "median"},
    "recompute": {"algorithm": {"name": "fedavg", "lr": 0.05}, "task": {"batch_norm": "recompute"}},
    "local": {
        "algorithm": {"name": "fedavg", "lr": 0.05},
        "task": {"batch_norm": "local"},
        "evaluate": {"after": True},
    },
}


@gpu
@pytest.mark.parametrize("case", CASES)
def test_the_stack_on_a_gpu_gives_the_model_of_the_loop_on_it(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = play(EXACT | {"name": "loop"}, "cuda", **CASES[case])
    for eager in (99, 0):  # never a CUDA graph, then from the first round on
        monkeypatch.setattr(graphs, "_EAGER", eager)
        stack = play(EXACT, "cuda", **CASES[case])
        near = 2e-3 if case in ("fedadam", "sparse", "residues") else 1e-4
        assert (loop - stack).norm() <= near * loop.norm(), eager


@gpu
@pytest.mark.parametrize("case", ["fedavg", "scaffold"])
def test_a_compiled_stack_gives_the_same_model(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_EAGER", 0)
    monkeypatch.setattr(vector, "rounded", lambda n, full: full)  # one width: fewer shapes to compile
    monkeypatch.setattr(widths, "rounded", lambda n, full: full)
    plain = play(EXACT | {"compile": False}, "cuda", **CASES[case])
    made = play(EXACT | {"compile": True}, "cuda", **CASES[case])
    assert (plain - made).norm() <= 1e-4 * plain.norm()


@gpu
@pytest.mark.parametrize(("precision", "near"), [("tf32", 4e-3), ("bfloat16", 2e-2)])
def test_lower_precision_stays_near(precision: str, near: float) -> None:
    exact, rough = (play(EXACT | {"precision": p}, "cuda", rounds=1, **CASES["fedavg"]) for p in ("float32", precision))
    assert 0 < (exact - rough).norm() <= near * exact.norm()  # 1e-3 and 4e-3 on an H200; later rounds drift apart


@gpu
@pytest.mark.parametrize("algorithm", [partial(Scaffold, population=6), FedSGD])
def test_requests_side_by_side_on_a_gpu_give_what_each_gives_alone(
    algorithm: Callable[..., Algorithm], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "_EAGER", 0)
    problem, device = there("cuda"), torch.device("cuda")
    made = [on(problem, algorithm(problem.task, lr), Vector) for lr in (0.05, 0.1)]
    leader = made[0].engine.leading([f.engine for f in made])
    with arithmetic(device, "float32"):
        for cohorts in ([[1, 3, 4], [0, 2]], [[2, 5, 0], [4, 1]], [[1, 3, 4], [0, 2]]):
            lanes = [(f.engine, f.request(ids, client_state="read")) for f, ids in zip(made, cohorts, strict=True)]
            for (engine, request), result in zip(lanes, leader.submit_together(lanes), strict=True):
                alone = engine.run(request)
                assert distance(result.partial.mean(), alone.partial.mean()) < 1e-5
                assert torch.allclose(result.loss, alone.loss, atol=1e-5)


@gpu
def test_a_stack_too_large_for_the_gpu_is_halved_and_goes_on() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(64, 20_000), nn.Linear(20_000, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.relu(self.first(x)))

    x, y = torch.randn(512, 64), torch.randint(0, 4, (512,))
    clients = list(torch.arange(512).split(8))  # 64 clients of 5.4 MB, several times over: not all fit at once
    options = {
        "clients": clients,
        "algorithm": {"name": "fedavg", "lr": 0.01},
        "rounds": 4,
        "batch": 8,
        "device": "cuda",
    }
    exact = {"name": "vector", "precision": "float32"}
    model = Wide()
    small = atoll.simulate(model, (x, y), engine=exact | {"chunk": 8}, **options)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (500 << 20)) / total)
    try:
        large = atoll.simulate(model, (x, y), engine=exact | {"chunk": 64}, **options)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert "out of memory with 64 clients at a time, so 32" in large.info["engine"]["reason"]
    for ours, theirs in zip(large.history, small.history, strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-4)


@gpu
@pytest.mark.parametrize("case", ["fedavg", "noisy", "a bound that moves", "noise that is taken back"])
def test_a_gpu_gives_the_model_of_the_cpu(case: str) -> None:
    cpu, gpu = play(EXACT, "cpu", **CASES[case]), play(EXACT, "cuda", **CASES[case])
    assert (cpu - gpu).norm() <= 1e-4 * cpu.norm()


@gpu
def test_private_convolutions_on_a_gpu_are_those_of_the_cpu_and_of_vmap() -> None:
    """A gradient for every example: from one backward pass, and the slow way."""
    x, y = torch.randn(96, 1, 12, 12, generator=torch.Generator().manual_seed(0)), torch.arange(96) % 4

    def private(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        conv = [nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Flatten()]
        run = atoll.simulate(
            nn.Sequential(*conv, nn.Linear(72, 4)),
            (x, y),
            clients=list(torch.arange(96).split(16)),
            algorithm={"name": "fedavg", "lr": 0.2},
            rounds=4,
            batch=8,
            engine=EXACT,
            device=device,
            local={"privacy": {"max_norm": 0.5, "noise_multiplier": 0.05}},
        )
        return torch.cat([v.double().flatten() for v in run.params.values()])

    cpu, gpu = private("cpu"), private("cuda")
    with patch("atoll.privacy.run.dpsgd.ghost_layers", lambda _: ()):
        slow = private("cuda")
    assert (cpu - gpu).norm() <= 1e-4 * cpu.norm()
    assert (slow - gpu).norm() <= 1e-4 * slow.norm()


@gpu
def test_who_diverges_on_a_gpu_is_left_out_as_on_a_cpu() -> None:
    x, y = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
    x[10:20] = 3e38

    def run(device: str) -> list[list[int] | None]:
        torch.manual_seed(0)
        done = atoll.simulate(
            nn.Linear(3, 2),
            (x, y),
            clients=list(torch.arange(60).split(10)),
            algorithm={"name": "scaffold", "lr": 0.1},
            rounds=6,
            cohort=4,
            engine=EXACT,
            device=device,
            on_divergence="drop",
        )
        assert all(bool(torch.isfinite(v).all()) for v in done.params.values())
        return [entry.get("dropped") for entry in done.history]

    assert run("cuda") == run("cpu")
    assert any(run("cuda"))


@gpu
def test_a_weighted_sum_on_a_gpu_has_all_its_bits() -> None:
    """TF32 keeps ten: a clipped update could count for a thousandth more than its bound."""
    draw = torch.Generator("cuda").manual_seed(0)
    x, w = (torch.rand(*shape, generator=draw, device="cuda") for shape in ((50, 3, 1_001), (50,)))
    with arithmetic(torch.device("cuda"), "tf32"):
        found = tree.weighted_sum(x, w)
    exact = torch.einsum("k,kij->ij", w.double(), x.double())
    assert found.shape == (3, 1_001)
    assert float((found / exact - 1).abs().max()) < 2e-6


@gpu
@pytest.mark.parametrize("n", [0, 1, 2, 4097, 3_000_001])
def test_a_gpu_draws_the_noise_of_the_cpu(n: int) -> None:
    key = rng.key("noise", n)
    there = dp.fast_bits(key.cuda(), (n,))
    assert torch.equal(there.cpu(), dp.fast_bits(key, (n,)))
    near = dp.normal(key.cuda(), (n,), dp.fast_bits).cpu()
    torch.testing.assert_close(near, dp.normal(key, (n,), dp.fast_bits), atol=5e-6, rtol=0)


@gpu
def test_a_clip_on_a_gpu_keeps_its_bound_in_large_updates() -> None:
    draw = torch.Generator("cuda").manual_seed(0)
    stack = {"w": torch.randn(20, 1_000_003, generator=draw, device="cuda").abs()}
    lengths = torch.func.vmap(l2_norm)(stack).double()
    exact = stack["w"].double().square().sum(1).sqrt()
    assert float((lengths / exact - 1).abs().max()) < 2e-6


# ------------------------------------------------------------------------------------------------------------ promises


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A GPU whose rounds are recorded from the first on, or a CPU whose stack defers its answers like one."""
    monkeypatch.setattr(Vector, "defers", True)
    monkeypatch.setattr(graphs, "_EAGER", 0)
    name: str = request.param
    return name


@dataclass
class Told(Vector):
    """A stack that remembers what it promised."""

    pending: list[Pending[Any]] = field(default_factory=list)

    def submit(self, request: Request) -> Pending[Any]:
        self.pending.append(super().submit(request))
        return self.pending[-1]

    def kept(self) -> list[bool]:
        return [p.result() is p.promised for p in self.pending]


def without_numbers(problem: Problem, *clients: int) -> Problem:
    """The last example of these clients is no number."""
    x = problem.columns["x"].clone()
    for client in clients:
        x[int(problem.partition.of(client)[-1])] = float("nan")
    return replace(problem, columns={**problem.columns, "x": x})


def rounds_of(problem: Problem) -> dict[str, Round]:
    buffers = tree.zeros_like(problem.model["buffers"])
    return {
        "central": Central(),
        "gossip": Gossip(),
        "two requests": Recompute.around(Central(), Statistics(problem.task), buffers),
    }


@pytest.mark.parametrize("bad", [(), (3,), (3, 0, 5)])
@pytest.mark.parametrize("name", ["central", "gossip", "two requests"])
def test_rounds_on_promises_leave_out_whom_the_loop_leaves_out(name: str, bad: tuple[int, ...], device: str) -> None:
    problem = without_numbers(there(device), *bad)
    algorithm: Any = FedAvg if name == "gossip" else Scaffold
    options = {} if name == "gossip" else {"population": 6}
    with arithmetic(torch.device(device), "float32"):
        stack, loop = (
            on(problem, algorithm(problem.task, 0.05, **options), engine, round=rounds_of(problem)[name])
            for engine in (Told, Loop)
        )
        broken = 0
        for ids in ([0, 3, 5], [1, 2, 4], [5, 3, 0], [3, 4, 1]):
            if set(ids) & set(bad):
                broken += 1 + (name == "two requests" and not set(ids) <= set(bad))
            ours, theirs = stack.run(ids), loop.run(ids)
            assert ours.columns().finite.tolist() == theirs.columns().finite.tolist() == [i not in bad for i in ids]
            assert ours.changed == theirs.changed == (not set(ids) <= set(bad))
            torch.testing.assert_close(ours.diagnostics, theirs.diagnostics, rtol=1e-3, atol=1e-5)
    assert distance(stack.state, loop.state) < 1e-4
    assert distance(stack.rows(), loop.rows()) < 1e-4
    assert torch.equal(stack.store.touched, loop.store.touched)
    assert isinstance(stack.engine, Told)
    assert stack.engine.kept().count(False) == broken


@pytest.mark.parametrize("algorithm", ["fedavg", "fednova"])
def test_every_round_tells_the_reducer_of_its_own_clients(algorithm: str, device: str) -> None:
    """Ids, examples, steps and staleness are in tensors that stay in place from round to round."""
    problem = there(device)
    made = on(problem, {"fedavg": FedAvg, "fednova": FedNova}[algorithm](problem.task, 0.05), Vector, reducer=Collect())
    loop = on(problem, made.algorithm, Loop, reducer=Collect())
    held = []
    with arithmetic(torch.device(device), "float32"):
        for turn, ids in enumerate(([0, 3, 5], [1, 2, 4], [5, 4, 3], [2, 0, 1])):
            stale = torch.tensor([float(turn), 0.0, 2.0 * turn])
            result, truth = (f.engine.run(f.request(ids, staleness=stale)) for f in (made, loop))
            info = result.partial.info
            assert info.id.tolist() == [ids[i] for i in result.order.tolist()]
            assert info.staleness.tolist() == stale[result.order].tolist()
            assert info.examples.tolist() == result.examples[result.order].tolist()
            assert info.steps.tolist() == truth.partial.info.steps[result.order].tolist()
            held.append((result.partial, result.order, truth.partial))
    for ours, order, theirs in held:  # also after the rounds that came later
        assert ours.info.id.tolist() == theirs.info.id[order.to(theirs.info.id.device)].tolist()
        back = torch.argsort(order).to(ours.updates.weight.device)
        assert distance(tree.rows(ours.updates.value, back), theirs.updates.value) < 1e-4


@pytest.mark.parametrize("reducer", [Mean(), Collect()])
def test_what_does_not_fit_is_halved_and_what_was_promised_before_still_holds(
    reducer: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = there(device)
    stack, whole = (on(problem, Scaffold(problem.task, 0.05, population=6), Vector, reducer=reducer) for _ in range(2))
    train, full = Vector._train, [torch.cuda.OutOfMemoryError("full")]

    def small(self: Vector, lanes: Any, rows: torch.Tensor) -> Any:
        if full and self is stack.engine and len(rows) > 2 and stack.number == 1:
            raise full.pop()
        return train(self, lanes, rows)

    monkeypatch.setattr(Vector, "_train", small)
    with arithmetic(torch.device(device), "float32"):
        for ids in ([0, 3, 5, 1], [1, 2, 4, 5], [5, 4, 3, 0]):
            for made in (stack, whole):
                made.run(ids)
    assert not full
    assert stack.engine.choice()["chunk"] == 2
    assert stack.engine.notes[-1] == "out of memory with 4 clients at a time, so 2"
    assert distance(stack.state, whole.state) < 1e-5
    assert distance(stack.rows(), whole.rows()) < 1e-5


def test_no_room_for_those_who_are_left_halves_the_stack(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = without_numbers(there(device), 3)
    stack, loop = (on(problem, Scaffold(problem.task, 0.05, population=6), e) for e in (Vector, Loop))
    full = [torch.cuda.OutOfMemoryError("full")]

    def fits(program: Any, out: Any, *rest: Any) -> Any:
        if full and len(out["weight"]) == 3:  # three of the four
            raise full.pop()
        return lifted(program, out, *rest)

    monkeypatch.setattr(tally, "lifted", fits)
    with arithmetic(torch.device(device), "float32"):
        for ids in ([0, 3, 5, 1], [1, 2, 4, 5]):
            assert stack.run(ids).columns().finite.tolist() == loop.run(ids).columns().finite.tolist()
    assert not full
    assert "out of memory with 4 clients at a time, so 2" in stack.engine.notes
    assert distance(stack.state, loop.state) < 1e-4
    assert distance(stack.rows(), loop.rows()) < 1e-4


PROMISED = ["scaffold", "noisy", "residues", "a secure sum", "gossip", "median", "recompute", "local"]


@pytest.mark.parametrize("case", PROMISED)
def test_a_run_on_promises_is_the_run_that_waits(case: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    late = play(EXACT, device, rounds=3, **CASES[case])
    monkeypatch.setattr(Vector, "defers", False)
    truth = play(EXACT, device, rounds=3, **CASES[case])
    if device == "cpu":
        assert torch.equal(late, truth)
    else:  # where sums are taken in no fixed order
        assert (late - truth).norm() <= (2e-3 if case == "residues" else 1e-4) * truth.norm()
