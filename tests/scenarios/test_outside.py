"""What a stranger writes against the contracts, outside of the package: short, checked by the kit, run by its name."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import atoll
from atoll.algorithms.fedavg import FedAvg
from atoll.experiment import Experiment
from atoll.records import read_runs
from atoll.runs import Watcher, run_together
from atoll.testing import check_protocol, check_reducer, check_round
from atoll.testing.harness import federation
from atoll.testing.problems import Problem, flat, quadratics
from tests.support.paths import ROOT

sys.path.insert(0, str(ROOT / "examples" / "outside"))
from clipped_mean import ClippedMean
from fedbuff import FedBuff
from krum import Krum

FILES = sorted((ROOT / "examples" / "outside").glob("*.py"))
WILD = 3  # the client that is


def blobs() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 3
    return torch.randn(120, 4, generator=g) + 3.0 * y[:, None].float(), y


def simulate(out: Path, **more: Any) -> atoll.Run:
    torch.manual_seed(1)
    clients = torch.arange(120).reshape(6, 20).tolist()
    toy = {"data": blobs(), "test": blobs(), "algorithm": {"name": "fedavg", "lr": 0.05}}
    given: dict[str, Any] = {**toy, "rounds": 6, "batch": 5, **more}
    return atoll.simulate(torch.nn.Linear(4, 3), clients=clients, out=out, **given)


def with_a_wild_client() -> Problem:
    """Its optimum is far away from everybody's."""
    made = quadratics()
    y = made.columns["y"].clone()
    y[made.partition.of(WILD)] += 1000.0
    return replace(made, columns={**made.columns, "y": y})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_takes_fewer_than_sixty_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 60


def test_krum_is_a_reducer() -> None:
    assert "parts merge in any grouping and order, and zero is their identity" in check_reducer(Krum())


def test_fedbuff_is_a_round() -> None:
    assert "both halves of every transform" in check_round(FedBuff())


def test_clipped_mean_is_a_protocol() -> None:
    assert check_protocol(ClippedMean()) == [
        "pure, and keyed",
        "messages can travel",
        "says so where too many drop out",
    ]


def test_krum_ignores_a_wild_client_and_says_whom_it_chose() -> None:
    robust, mean = (
        federation(with_a_wild_client(), FedAvg(quadratics().task, lr=0.1), reducer=reducer)
        for reducer in (Krum(), None)
    )
    for _ in range(3):
        alone = federation(with_a_wild_client(), robust.algorithm)
        alone.state, alone.number = {**robust.state, "reducer": {}}, robust.number
        chosen = int(robust.run(robust.everyone()).diagnostics["chosen"])
        assert chosen != WILD
        alone.run([chosen])
        assert torch.equal(flat(alone.server["params"]), flat(robust.server["params"]))  # its update, and nobody else's
        mean.run(mean.everyone())
    assert flat(robust.server["params"]).abs().max() < 10 < flat(mean.server["params"]).abs().max()


def test_krum_runs_by_its_import_path(tmp_path: Path) -> None:
    runs = [
        simulate(tmp_path / engine, rounds=20, reducer={"name": "krum:Krum", "byzantine": 1}, engine=engine)
        for engine in ("loop", "vector")
    ]
    assert runs[0].final["accuracy"] > 0.6
    assert runs[0].final["loss"] == pytest.approx(runs[1].final["loss"], rel=1e-4)


def test_a_wild_client_spoils_the_mean_of_a_run_and_not_krum(tmp_path: Path) -> None:
    x, y = blobs()
    y[20 * WILD : 20 * (WILD + 1)] = (y[20 * WILD : 20 * (WILD + 1)] + 1) % 3
    x[20 * WILD : 20 * (WILD + 1)] *= 100.0
    mean, robust = (
        simulate(tmp_path / name, data=(x, y), **more)
        for name, more in (("mean", {}), ("krum", {"reducer": "krum:Krum"}))
    )
    assert robust.final["loss"] < 1 < mean.final["loss"]


class GoneError(Exception):
    """What a test stops a run with."""


def gone_after(rounds: int) -> Watcher:
    def watch(done: int, of: int, line: object) -> None:
        if done == rounds:
            raise GoneError

    return watch


def krum_experiment(seed: int, **more: Any) -> Experiment:
    toy = {
        "rounds": 4,
        "data": "digits",
        "partition": {"name": "iid", "clients": 8},
        "cohort": {"name": "fixed", "size": 5},
        "task": {"model": "linear"},
        "local": {"max_steps": 2},
        "algorithm": {"name": "fedavg", "lr": 0.1},
        "reducer": {"name": "krum:Krum", "byzantine": 1},
        "engine": "vector",
    }
    return Experiment.parse({**toy, "seed": seed, **more})


def chosen(folder: Path) -> list[int]:
    lines = read_runs([folder])[0].rounds
    assert all(line["diagnostics"]["chosen"] in line["cohort"]["ids"] for line in lines)
    return [line["diagnostics"]["chosen"] for line in lines]


def test_the_record_says_in_every_round_whom_krum_chose(tmp_path: Path) -> None:
    run = simulate(tmp_path / "one", reducer="krum:Krum", engine="loop")
    found = chosen(tmp_path / "one")
    assert len(found) == 6
    assert len(set(found)) > 1
    assert "diagnostics" not in run.final
    assert read_runs([tmp_path / "one"])[0].series("diagnostics", "chosen").values.tolist() == found


def test_runs_in_lockstep_record_whom_krum_chose_in_each(tmp_path: Path) -> None:
    run_together([krum_experiment(seed) for seed in (0, 1)], [tmp_path / f"stack{seed}" for seed in (0, 1)])
    for seed in (0, 1):
        atoll.run(krum_experiment(seed), tmp_path / f"alone{seed}")
        assert chosen(tmp_path / f"stack{seed}") == chosen(tmp_path / f"alone{seed}")
    assert chosen(tmp_path / "stack0") != chosen(tmp_path / "stack1")


def test_a_resumed_run_records_whom_krum_chose(tmp_path: Path) -> None:
    given = krum_experiment(0, checkpoint={"every": 2})
    atoll.run(given, tmp_path / "whole")
    with pytest.raises(GoneError):
        atoll.run(given, tmp_path / "half", watch=gone_after(3))
    atoll.run(given, tmp_path / "half", resume=True)
    assert chosen(tmp_path / "half") == chosen(tmp_path / "whole")


def test_fedbuff_runs_by_its_import_path_and_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    given = {"round": {"name": "fedbuff:FedBuff", "concurrency": 4}, "cohort": {"name": "fixed", "size": 2}}
    given |= {"rounds": 12, "checkpoint": {"every": 3}}
    whole = simulate(tmp_path / "whole", **given)
    assert whole.final["accuracy"] > 0.6
    assert [entry["cohort"]["size"] for entry in whole.history] == [2] * 12
    with pytest.raises(GoneError):
        simulate(tmp_path / "half", watch=gone_after(7), **given)
    resumed = simulate(tmp_path / "half", resume=True, **given)
    assert [entry["model"] for entry in resumed.history] == [entry["model"] for entry in whole.history]
