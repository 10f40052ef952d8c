"""A round that looks at its clients' numbers last is the round that looks first."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

import atoll
from atoll import tree
from atoll.algorithms.fedavg import FedAvg
from atoll.engines import Vector, program
from atoll.engines.vector import vector
from atoll.runs import Run
from atoll.testing.harness import federation
from atoll.testing.problems import network

PRIVATE = ["equal_weights", {"name": "clip_l2", "max_norm": 0.5}, {"name": "gaussian_noise", "noise_multiplier": 1.0}]
X, Y = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2


LATE = patch.object(Vector, "defers", True)  # as on a GPU
LIFTED = program.lifted


def trained(out: Path, x: torch.Tensor = X, **options: Any) -> Run:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
    return atoll.simulate(
        model, (x, Y), (X, Y), clients=list(torch.arange(60).reshape(6, 10)), rounds=5, cohort=4, out=out, device="cpu",
        algorithm={"name": "scaffold", "lr": 0.1}, engine="vector", evaluate={"clients": 0}, **options,
    )  # fmt: skip


def same(a: Run, b: Run) -> None:
    assert [e["model"] for e in a.history] == [e["model"] for e in b.history]
    assert [e.get("dropped") for e in a.history] == [e.get("dropped") for e in b.history]


@pytest.mark.parametrize("options", [{}, {"transforms": PRIVATE}, {"transforms": PRIVATE, "privacy": {"canaries": 4}}])
def test_looking_last_changes_nothing(tmp_path: Path, options: dict[str, Any]) -> None:
    first = trained(tmp_path / "first", **options)
    with LATE:
        same(trained(tmp_path / "last", **options), first)


def test_who_must_be_left_out_is_left_out_of_model_and_memory(tmp_path: Path) -> None:
    wild = X.clone()
    wild[10:20] = 3e38
    first = trained(tmp_path / "first", wild, on_divergence="drop")
    assert any("dropped" in e for e in first.history)
    with LATE:
        same(trained(tmp_path / "last", wild, on_divergence="drop"), first)


def test_no_room_for_those_who_are_left_halves_the_stack(tmp_path: Path) -> None:
    wild = X.clone()
    wild[10:20] = 3e38
    first = trained(tmp_path / "first", wild, on_divergence="drop")
    full = [torch.cuda.OutOfMemoryError("full")]

    def lifted(*given: Any) -> Any:
        """Makes a sum, but not the first one of three of the four."""
        if full and len(given[1]["weight"]) == 3:
            raise full.pop()
        return LIFTED(*given)

    with LATE, patch.object(vector, "lifted", lifted):
        last = trained(tmp_path / "last", wild, on_divergence="drop")
    assert not full
    assert "out of memory with 4 clients at a time, so 2" in last.info["engine"]["reason"]
    assert [e.get("dropped") for e in last.history] == [e.get("dropped") for e in first.history]
    for name, value in last.params.items():
        torch.testing.assert_close(value, first.params[name])


def test_the_total_is_there_before_anybody_looks_and_nothing_is_remembered_yet() -> None:
    problem = network()
    made = federation(problem, FedAvg(problem.task, 0.1), Vector)
    engine = made.engine
    assert isinstance(engine, Vector)
    truth = engine.run(made.job([5, 0, 3]))
    with LATE:
        early = engine.begin(made.job([5, 0, 3]))
    assert tree.digest(early.total.value) == tree.digest(truth.total.value)
    result = early.result()
    assert result.total is early.total
    assert torch.equal(result.loss, truth.loss)
    assert torch.equal(result.order, truth.order)
