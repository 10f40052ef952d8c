"""Runs of `simulate` in reports and comparisons: seeds are one group, and groups have names that people read."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import atoll
from atoll.analysis.compare import compare, opened
from atoll.records import read_runs
from atoll.report import group, write

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()


class Net(nn.Sequential):
    """A model of one's own."""

    def __init__(self, width: int = 3) -> None:
        super().__init__(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


def simulated(out: Path, seed: int, algorithm: str = "fedavg", model: Any = None, **options: Any) -> Path:
    atoll.simulate(
        model or (lambda: Net()),
        (X, Y),
        (X, Y),
        clients={"name": "iid", "clients": 3},
        algorithm={"name": algorithm, "lr": 0.1, **({"mu": 0.1} if algorithm == "fedprox" else {}), **options},
        rounds=2,
        engine="vector",
        seed=seed,
        out=out,
    )
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    for algorithm in ("fedavg", "fedprox"):
        for seed in range(3):
            simulated(place / f"{algorithm}-{seed}", seed, algorithm)
    return place


def test_seeds_of_a_function_that_makes_models_are_one_group(runs: Path) -> None:
    groups = group(read_runs(sorted(runs.iterdir())))
    assert [(g.name, g.seeds) for g in groups] == [("fedavg", [0, 1, 2]), ("fedprox", [0, 1, 2])]
    first = [torch.load(r / "model.pt", weights_only=True)["0.weight"] for r in sorted(runs.glob("fedavg-*"))]
    assert not torch.equal(first[0], first[1])  # each seed has a model of its own


def test_their_report_has_intervals_and_no_digests_in_its_names(runs: Path, tmp_path: Path) -> None:
    page = write(sorted(runs.iterdir()), tmp_path / "r.html").read_text()
    assert "no interval" not in page
    assert "3 seeds" in page
    assert "python_inputs" not in page.split("<body")[1].split("[data]")[0]
    assert "digest=" not in page


def test_they_are_compared_in_one_row(runs: Path) -> None:
    found = compare(opened(str(runs / "fedavg-*")), opened(str(runs / "fedprox-*")))
    assert [(row.name, row.seeds) for row in found.rows] == [("all", (0, 1, 2))]


def test_models_of_other_sizes_are_other_groups_with_names(tmp_path: Path) -> None:
    folders = [simulated(tmp_path / f"{w}-{s}", s, model=lambda w=w: Net(w)) for w in (3, 5) for s in (0, 1)]
    folders += [simulated(tmp_path / f"linear-{s}", s, model=lambda: nn.Linear(4, 2)) for s in (0, 1)]
    groups = group(read_runs(folders))
    assert [g.name for g in groups] == [
        "fedavg model=Net parameters=23",
        "fedavg model=Net parameters=37",
        "fedavg model=Linear parameters=10",
    ]


def test_models_that_only_their_weights_tell_apart_go_by_their_folders(tmp_path: Path) -> None:
    folders = [simulated(tmp_path / name, 0, model=Net()) for name in ("first", "second")]
    assert [g.name for g in group(read_runs(folders))] == ["fedavg (first)", "fedavg (second)"]
