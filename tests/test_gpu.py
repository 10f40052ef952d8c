"""On a GPU the engines agree as they do on a CPU. Skipped where there is none: run with `pytest -m gpu`."""

import pytest
import torch
from torch import nn

import atoll

pytestmark = pytest.mark.gpu


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(8 * 36, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(torch.relu(self.norm(self.conv(x)))).flatten(1))


def play(engine: object, device: str, algorithm: dict, **options: object) -> torch.Tensor:
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
        rounds=5,
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
            {"name": "clip_l2", "bound": 1.0},
            {"name": "gaussian_noise", "multiplier": 0.01},
        ],
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
def test_the_stack_on_a_gpu_gives_the_model_of_the_loop_on_it(case: str) -> None:
    loop = play(EXACT | {"name": "loop"}, "cuda", **CASES[case])
    stack = play(EXACT, "cuda", **CASES[case])
    assert (loop - stack).norm() <= (2e-3 if case in ("fedadam", "sparse") else 1e-4) * loop.norm()


def test_a_gpu_gives_the_model_of_the_cpu() -> None:
    cpu, gpu = play(EXACT, "cpu", **CASES["fedavg"]), play(EXACT, "cuda", **CASES["fedavg"])
    assert (cpu - gpu).norm() <= 1e-4 * cpu.norm()
