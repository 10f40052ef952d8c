"""`atoll check module:Thing` knows what a thing is, and holds it to what its kind must do."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from atoll.core import Participation, Update
from atoll.data import Dataset
from atoll.data.partition import Iid, Partition
from atoll.data.sampling import Fixed
from atoll.protocols import AdditiveSharing
from atoll.reducers import Mean
from atoll.rounds import Central
from atoll.schedules import Cosine, Schedule
from atoll.transforms.clip import ClipL2
from atoll.tree import Tree
from tests.support.shell import Shell, shell


@pytest.fixture
def sh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return shell(tmp_path, monkeypatch, capsys, 400)


@dataclass(frozen=True)
class Forgot(ClipL2):
    """Says that it clips, and does not."""

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        return update, own


@dataclass(frozen=True)
class Generator(Fixed):
    """Draws from torch's own generator."""

    def sample(self, population: int, number: int, key: Tensor) -> tuple[Tensor, Participation]:
        return torch.randperm(population)[: self.size], super().sample(population, number, key)[1]


@dataclass(frozen=True)
class OffByOne(Fixed):
    """Counts from 1."""

    def sample(self, population: int, number: int, key: Tensor) -> tuple[Tensor, Participation]:
        ids, how = super().sample(population, number, key)
        return ids + 1, how


class Below(Schedule):
    """Falls below 0."""

    def value(self, round: int, history: Any) -> float:
        return 1.0 - round


class Net(nn.Linear):
    """Takes examples of twelve numbers."""

    def __init__(self) -> None:
        super().__init__(12, 10)


class Odd(nn.Linear):
    """Takes what nobody has."""

    def __init__(self) -> None:
        super().__init__(7, 10)


def sized(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Linear(inputs[0], outputs)


class Missing:
    """Has no hook at all."""

    def __init__(self, task: Any, lr: float) -> None: ...


class Turns:
    """Row after row to client after client: draws nothing."""

    def __call__(self, labels: Any, keys: Any, examples: int, key: Any) -> Partition:
        return Partition.from_lists([list(range(i, examples, 4)) for i in range(4)])


class Nothing:
    """Is nothing that a file could name."""


def wards() -> Dataset:
    """Data of one's own."""
    return Dataset.from_arrays(np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1]))


GOOD = [
    (ClipL2, " --set max_norm=0.5", "a transform"),
    (Mean, "", "a reducer"),
    (Iid, " --set clients=5", "a partition"),
    (Turns, "", "a partition"),
    (Fixed, " --set size=5", "a cohort"),
    (Cosine, " --set start=0.1 --set over=5", "a schedule"),
    (Net, "", "a model"),
    (sized, "", "a model"),
    (Central, "", "a round"),
    (AdditiveSharing, " --set insecure_seed=true", "a protocol"),
]
BAD = [
    (Forgot, " --set max_norm=0.5", "keeps its bound: found"),
    (Forgot, "", "Forgot: cannot be built"),
    (Generator, " --set size=5", "same key and round, same cohort"),
    (OffByOne, " --set size=40", "draws clients that there are"),
    (Below, "", "gives a number of at least 0 for every round"),
    (Odd, "", "takes examples of a usual shape: none of them"),
    (Missing, "", "has every hook and traits: found no traits"),
    (AdditiveSharing, "", "is checked with insecure_seed = True"),
    (Nothing, "", "is none of an algorithm, a transform"),
    (wards, "", "is data, which `atoll data show` checks"),
]


@pytest.mark.parametrize(("thing", "options", "kind"), GOOD, ids=[x[0].__name__ for x in GOOD])
def test_a_thing_is_known_for_what_it_is(sh: Shell, thing: Any, options: str, kind: str) -> None:
    done = sh(f"check {thing.__module__}:{thing.__name__}{options}")
    assert done.code == 0, done.err
    assert f"{thing.__name__} does what {kind} must." in done.out


@pytest.mark.parametrize(("thing", "options", "message"), BAD)
def test_what_it_does_not_keep_is_said_without_a_traceback(sh: Shell, thing: Any, options: str, message: str) -> None:
    done = sh(f"check {thing.__module__}:{thing.__name__}{options}")
    assert done.code != 0
    assert message in done.err + done.out
