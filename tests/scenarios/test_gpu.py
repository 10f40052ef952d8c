"""On a GPU the engines agree as they do on a CPU. Skipped where there is none: run with `pytest -m gpu`."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from torch import nn

import atoll
from atoll import rng, tree
from atoll.algorithms.scaffold import Scaffold
from atoll.core import Job
from atoll.data import Same
from atoll.engines import RowStore, Scratch, Vector, arithmetic
from atoll.engines.vector import cuda_graphs as graphs
from atoll.engines.vector import ragged as widths
from atoll.engines.vector import vector
from atoll.rng import dp
from atoll.testing.assertions import distance
from atoll.testing.harness import federation
from atoll.testing.problems import network
from atoll.transforms.clip import l2_norm

pytestmark = pytest.mark.gpu


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


EXACT = {"name": "vector", "precision": "float32"}
CASES = {
    "fedavg": {"algorithm": {"name": "fedavg", "lr": 0.05, "optimizer": {"name": "sgd", "momentum": 0.9}}},
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
    "private before it leaves": {
        "algorithm": {"name": "fedavg", "lr": 0.05},
        "transforms": ["equal_weights", {"name": "clip_l2", "max_norm": 0.1}, {"name": "privunit", "epsilon": 50.0}],
    },
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


@pytest.mark.parametrize("case", CASES)
def test_the_stack_on_a_gpu_gives_the_model_of_the_loop_on_it(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = play(EXACT | {"name": "loop"}, "cuda", **CASES[case])
    for eager in (99, 0):  # never a CUDA graph, then from the first round on
        monkeypatch.setattr(graphs, "_EAGER", eager)
        stack = play(EXACT, "cuda", **CASES[case])
        near = 2e-3 if case in ("fedadam", "sparse", "residues") else 1e-4
        assert (loop - stack).norm() <= near * loop.norm(), eager


@pytest.mark.parametrize("case", ["fedavg", "scaffold"])
def test_a_compiled_stack_gives_the_same_model(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_EAGER", 0)
    monkeypatch.setattr(vector, "rounded", lambda n, full: full)  # one width: fewer shapes to compile
    monkeypatch.setattr(widths, "rounded", lambda n, full: full)
    plain = play(EXACT | {"compile": False}, "cuda", **CASES[case])
    made = play(EXACT | {"compile": True}, "cuda", **CASES[case])
    assert (plain - made).norm() <= 1e-4 * plain.norm()


@pytest.mark.parametrize(("precision", "near"), [("tf32", 4e-3), ("bfloat16", 2e-2)])
def test_lower_precision_stays_near(precision: str, near: float) -> None:
    exact, rough = (play(EXACT | {"precision": p}, "cuda", rounds=1, **CASES["fedavg"]) for p in ("float32", precision))
    assert 0 < (exact - rough).norm() <= near * exact.norm()  # 1e-3 and 4e-3 on an H200; later rounds drift apart


def test_jobs_side_by_side_on_a_gpu_give_what_each_gives_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_EAGER", 0)
    problem = network()
    columns, device = tree.to(problem.columns, "cuda"), torch.device("cuda")
    engine = Vector(columns, Same(), device)
    made = [federation(problem, Scaffold(problem.task.to(device), lr, population=6)) for lr in (0.05, 0.1)]
    with arithmetic(device, "float32"):
        jobs = [on(f.job(ids)) for f, ids in zip(made, ([1, 3, 4], [0, 2]), strict=True)]
        for _ in range(3):
            for job, result in zip(jobs, engine.run_many(jobs), strict=True):
                alone = engine.run(replace(job, memory=Scratch(job.memory)))
                assert distance(tree.to(result.total.mean(), "cpu"), tree.to(alone.total.mean(), "cpu")) < 1e-5


def on(job: Job) -> Job:
    """The job on a GPU, its memory read only, so that it can be done again."""
    memory = RowStore(job.memory.first, 6, torch.device("cuda"))
    moved = {k: tree.to(getattr(job, k), "cuda") for k in ("settings", "sent", "state")}
    return replace(job, memory=Scratch(memory), **moved)


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


@pytest.mark.parametrize("case", ["fedavg", "noisy", "a bound that moves", "noise that is taken back"])
def test_a_gpu_gives_the_model_of_the_cpu(case: str) -> None:
    cpu, gpu = play(EXACT, "cpu", **CASES[case]), play(EXACT, "cuda", **CASES[case])
    assert (cpu - gpu).norm() <= 1e-4 * cpu.norm()


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


def test_a_weighted_sum_on_a_gpu_has_all_its_bits() -> None:
    """TF32 keeps ten: a clipped update could count for a thousandth more than its bound."""
    draw = torch.Generator("cuda").manual_seed(0)
    x, w = (torch.rand(*shape, generator=draw, device="cuda") for shape in ((50, 3, 1_001), (50,)))
    with arithmetic(torch.device("cuda"), "tf32"):
        found = tree.weighted_sum(x, w)
    exact = torch.einsum("k,kij->ij", w.double(), x.double())
    assert found.shape == (3, 1_001)
    assert float((found / exact - 1).abs().max()) < 2e-6


@pytest.mark.parametrize("n", [0, 1, 2, 4097, 3_000_001])
def test_a_gpu_draws_the_noise_of_the_cpu(n: int) -> None:
    key = rng.key("noise", n)
    there = dp.fast_bits(key.cuda(), (n,))
    assert torch.equal(there.cpu(), dp.fast_bits(key, (n,)))
    near = dp.normal(key.cuda(), (n,), dp.fast_bits).cpu()
    torch.testing.assert_close(near, dp.normal(key, (n,), dp.fast_bits), atol=5e-6, rtol=0)


def test_a_clip_on_a_gpu_keeps_its_bound_in_large_updates() -> None:
    draw = torch.Generator("cuda").manual_seed(0)
    stack = {"w": torch.randn(20, 1_000_003, generator=draw, device="cuda").abs()}
    lengths = torch.func.vmap(l2_norm)(stack).double()
    exact = stack["w"].double().square().sum(1).sqrt()
    assert float((lengths / exact - 1).abs().max()) < 2e-6
