"""Published mistakes in defences, which the kit refuses."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from atoll import tree
from atoll.core import Total
from atoll.errors import ConformanceError
from atoll.reducers import REDUCERS, GeometricMedian, Krum, Mean, Median, MultiKrum, TrimmedMean
from atoll.reducers.rows import Rows
from atoll.testing import check_anything, check_reducer
from atoll.tree import Tree

CLAIM = "withstands as many liars as it says"


class KrumOfAllDistances(Krum):
    """FedEval's: nobody is left out of the sum of distances, so that it is the update closest to the mean."""

    def weigh(self, rows: Rows, key: Tensor) -> tuple[Tensor, Tree]:
        scores = rows.distances.sum(1)
        return (torch.arange(len(rows)) == scores.argmin()).double(), {"scores": scores}


class TrimmedMeanThatSums(TrimmedMean):
    """FedEval's: what is left is not divided by how many they are."""

    def finish(self, partial: Any, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        total, state, said = super().finish(partial, state, key)
        kept = len(partial) - 2 * int(self.share * len(partial))
        return replace(total, value=tree.scale(total.value, float(kept))), state, said


class OneSided(TrimmedMean):
    """Trims the highest values only."""

    def aggregate(self, stack: Any, state: Tree, key: Tensor) -> tuple[Tree, Tree, Tree]:
        n, cut = len(stack), 2 * self.tolerates(len(stack))
        return tree.map(lambda x: x.sort(0).values[: n - cut].mean(0), stack.updates.value), state, {}


class KeepsTooMany(MultiKrum):
    def weigh(self, rows: Rows, key: Tensor) -> tuple[Tensor, Tree]:
        return torch.full((len(rows),), 1 / len(rows), dtype=torch.float64), {}


@dataclass(frozen=True)
class TwoSteps(GeometricMedian):
    """Too few to get there from the mean."""

    steps: int = 2


class SaysNothing(Median):
    assumes: ClassVar[str] = ""


class ClaimsAll(Median):
    def tolerates(self, clients: int) -> int:
        return clients


class BreaksBefore(Median):
    def breaks_at(self, clients: int) -> int:
        return 1


class MeanThatClaims(Mean):
    assumes: ClassVar[str] = "that all is well"

    def tolerates(self, clients: int) -> int:
        return 1 if clients > 3 else 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (KrumOfAllDistances(2), "withstands 2 of 7 clients that are far away, one at the mean that the others moved"),
        (TrimmedMeanThatSums(0.2), "equal updates give that update"),
        (OneSided(0.3), "withstands"),
        (KeepsTooMany(2), "withstands 1 of"),
        (TwoSteps(), "withstands"),
        (SaysNothing(), "says what it assumes"),
        (ClaimsAll(), "tolerates some of the clients"),
        (BreaksBefore(), "breaks no earlier than it tolerates"),
        (MeanThatClaims(), "withstands 1 of 7"),
    ],
)
def test_a_wrong_defence_is_refused_by_name(wrong: Any, words: str) -> None:
    with pytest.raises(ConformanceError) as refused:
        check_reducer(wrong)
    assert str(refused.value).startswith(words)


def test_the_usual_cause_names_the_mistake() -> None:
    with pytest.raises(ConformanceError, match=r"distances to all in place of the n - f - 2 nearest"):
        check_anything(KrumOfAllDistances, {"byzantine": 2})


@pytest.mark.parametrize("name", ["median", "geometric_median", "sign_guard", "clipped_clustering"])
def test_right_ones_pass(name: str) -> None:
    assert CLAIM in check_reducer(REDUCERS[name]())
    assert CLAIM in check_reducer(Krum(2))
    assert CLAIM not in check_reducer(Mean())
