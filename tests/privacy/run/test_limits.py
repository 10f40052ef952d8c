"""Every update of a private run is held against the bound that its noise was measured for."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import atoll
from atoll import tree
from atoll.core import Limit, Spec, Transform, Update
from atoll.errors import ConformanceError
from atoll.transforms.clip import ClipL2
from atoll.transforms.weights import EqualWeights
from atoll.tree import Tree


@dataclass(frozen=True)
class Forgot(ClipL2):
    """Says that it clips, and does not."""

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        return update, own


@dataclass(frozen=True)
class ForgotOne(ClipL2):
    """Clips all tensors but the last."""

    def scaled(self, update: Update, state: Tree) -> tuple[Update, Tree]:
        update, by = super().scaled(update, state)
        left = iter(range(len(tree.leaves(by)))[::-1])
        return update, tree.map(lambda x: x if next(left) else torch.ones_like(x), by)


@dataclass(frozen=True)
class Heavy(EqualWeights):
    """Says that all weigh the same, and lets each weigh as many as it has examples."""

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        return update, own


@dataclass(frozen=True)
class Own(Transform):
    """A clip of one's own that does clip, without a margin for rounding."""

    max_norm: float

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        return self, replace(spec, l2=self.max_norm)

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        norm = torch.stack([x.norm() for x in tree.leaves(update.value)]).norm()
        return update._replace(value=tree.scale(update.value, (self.max_norm / norm).clamp(max=1.0))), own


def named(cls: type) -> str:
    return f"{__name__}:{cls.__name__}"


def experiment(*transforms: Any, **changes: Any) -> dict[str, Any]:
    return {
        "rounds": 3,
        "data": "digits",
        "partition": {"name": "iid", "clients": 12},
        "cohort": {"name": "poisson", "size": 6},
        "algorithm": {"name": "fedavg", "lr": 0.2},
        "task": {"model": "linear"},
        "local": {"max_steps": 2},
        "evaluate": {"every": 3, "clients": 0},
        "engine": "vector",
        "on_divergence": "drop",
        "transform": list(transforms),
        **changes,
    }


GAUSSIAN = {"name": "gaussian_noise", "noise_multiplier": 1.0}
CLIP = {"name": "clip_l2", "max_norm": 0.01}


@pytest.mark.parametrize("engine", ["vector", "loop", "threads"])
def test_an_epsilon_is_refused_for_a_clip_that_does_not_clip(tmp_path: Path, engine: str) -> None:
    chain = ["equal_weights", {"name": named(Forgot), "max_norm": 1e-4}, GAUSSIAN]
    message = r"round 1: the update of .* is longer \(l2\) than 0.0001, which gaussian_noise relies on: "
    with pytest.raises(ConformanceError, match=message):
        atoll.run(experiment(*chain, engine=engine), tmp_path / "run")
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["status"] == "failed: ConformanceError"
    block = info["privacy"]["client"]
    assert block["holds"] is False
    assert block["why"] == "a client's update was longer than what the noise was measured for"
    assert "epsilon" not in block


@pytest.mark.parametrize(
    "chain",
    [
        ["equal_weights", {"name": named(ForgotOne), "max_norm": 1e-4}, GAUSSIAN],
        [named(Heavy), CLIP, GAUSSIAN],
        ["equal_weights", {"name": named(Forgot), "max_norm": 1e-4}, {**GAUSSIAN, "name": "tree_noise"}],
        [
            "equal_weights",
            {"name": named(Forgot), "max_norm": 1e-4},
            {"name": "local_gaussian", "epsilon": 2.0, "delta": 1e-3},
        ],
        ["equal_weights", {"name": named(Forgot), "max_norm": 1e-4}, {"name": "privunit", "epsilon": 2.0}],
    ],
    ids=["one tensor", "weights", "tree", "local", "privunit"],
)
def test_whatever_breaks_the_bound_is_found_where_the_noise_stands(tmp_path: Path, chain: list[Any]) -> None:
    cohort = "everyone" if "tree" in str(chain) else {"name": "poisson", "size": 6}
    with pytest.raises(ConformanceError, match="relies on"):
        atoll.run(experiment(*chain, cohort=cohort), tmp_path / "run")


def test_a_clip_of_ones_own_that_clips_has_its_epsilon_and_is_listed_as_assumed(tmp_path: Path) -> None:
    run = atoll.run(experiment("equal_weights", {"name": named(Own), "max_norm": 0.01}, GAUSSIAN), tmp_path / "own")
    block = run.info["privacy"]["client"]
    assert block["holds"]
    assert f"code that is not atoll's does what it says: {named(Own)}" in block["assumed"]
    ours = atoll.run(experiment("equal_weights", CLIP, GAUSSIAN), tmp_path / "ours").info["privacy"]["client"]
    assert not any("not atoll's" in note for note in ours["assumed"])
    assert block["epsilon"] == ours["epsilon"]


def test_a_limit_is_kept_up_to_rounding_and_says_nothing_of_what_is_no_number() -> None:
    limit = Limit("l2", 5.0)
    one = torch.ones(())
    update = Update({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}, one)
    assert limit.kept(update, {})
    assert not Limit("l2", 4.99).kept(update, {})
    assert not limit.kept(update._replace(weight=2 * one), {})
    assert limit.kept(update, {"a": -one, "b": one})
    assert not limit.kept(update, {"a": -2 * one, "b": one})
    assert limit.kept(update, {"a": torch.nan * one, "b": one})
    assert Limit("l1", 7.0).kept(update, {})
    assert not Limit("l1", 6.9).kept(update, {})
    assert Limit("l1", 11.0).kept(update, {"a": one, "b": 2 * one})
    assert not Limit("l1", 10.9).kept(update, {"a": one, "b": 2 * one})
