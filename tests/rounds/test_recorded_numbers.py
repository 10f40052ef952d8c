"""Numbers that an algorithm wants in the record: declared in its traits, kept in the server's state."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import atoll
from atoll import tree
from atoll.algorithms import FedAvg
from atoll.core import Model, Total, Traits
from atoll.errors import ConformanceError
from atoll.testing import check_algorithm
from atoll.tree import Tree


@dataclass(frozen=True)
class Drifting(FedAvg):
    """FedAvg that says how far the server moved."""

    def traits(self) -> Traits:
        return Traits(records=("drift",))

    def init(self, model: Model, key: Tensor) -> Tree:
        return {**model, "drift": torch.zeros((), device=tree.device(model["params"]))}

    def send(self, server: Tree) -> Tree:
        return tree.without(server, ("drift",))

    def apply(self, server: Tree, total: Total, key: Tensor) -> Tree:
        moved = super().apply(tree.without(server, ("drift",)), total, key)
        return {**moved, "drift": tree.norm(tree.sub(moved["params"], server["params"]))}


class Forgetful(Drifting):
    def init(self, model: Model, key: Tensor) -> Tree:
        return dict(model)


def test_what_an_algorithm_declares_stands_in_every_line_and_callbacks_see_it(tmp_path: Path) -> None:
    seen: list[Any] = []
    file = {
        "rounds": 3,
        "engine": "loop",
        "data": "digits",
        "partition": {"name": "iid", "clients": 3},
        "task": {"model": "linear"},
        "algorithm": {"name": f"{__name__}:Drifting", "lr": 0.1},
    }
    run = atoll.run(file, tmp_path / "a", watch=lambda done, rounds, entry: seen.append(entry["diagnostics"]["drift"]))
    plain = atoll.run({**file, "algorithm": {"name": "fedavg", "lr": 0.1}}, tmp_path / "b")
    drifts = [e["diagnostics"]["drift"] for e in run.history]
    assert all(drift > 0 for drift in drifts)
    assert drifts == seen
    assert "diagnostics" not in plain.history[0]
    assert all(torch.equal(run.params[k], v) for k, v in plain.params.items())


def test_the_kit_refuses_a_name_that_is_not_in_the_state() -> None:
    check_algorithm(Drifting)
    with pytest.raises(ConformanceError, match="the server's state has what is recorded"):
        check_algorithm(Forgetful)
