"""The kit for attacks: all of ours pass it, and attacks that are wrong in one line do not."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from atoll import rng
from atoll.attacks.model import ATTACKS, EdgeCase, FreeRider, LabelFlip, MinMax, RandomUpdate, ScaledUpdate
from atoll.core import AdversaryView, Attack, Examples, Knowledge, Poison, Stealth
from atoll.data import Dataset
from atoll.errors import ConformanceError
from atoll.testing import check_anything, check_attack
from atoll.tree import Tree

Crafted = tuple[Tensor, Tree]


def pictures() -> Dataset:
    x = (rng.uniform(rng.key("pictures"), (20, 1, 12, 12)) * 255).to(torch.uint8)
    return Dataset("pictures", "classification", {"x": x, "y": torch.zeros(20).long()}, None, (1, 12, 12), 1)


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_passes_the_kit(name: str) -> None:
    attack = EdgeCase(source=pictures(), boost=3.0) if name == "edge_case" else ATTACKS[name]()
    assert check_attack(attack)


def test_options_pass_it_too() -> None:
    for attack in (FreeRider(noise=1.0, replay=True), MinMax(direction="sign"), MinMax(sees="colluders")):
        assert check_attack(attack)


@dataclass(frozen=True)
class WrongGamma(MinMax):
    """Min-max whose search ends one step beyond what was allowed."""

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> Crafted:
        mean = seen.benign.mean(0)
        return mean + 1.05 * (super().craft(seen, state, key)[0] - mean), state


@dataclass(frozen=True)
class SumForMax(Attack):
    """Says that it minds the largest distance, and does not."""

    stealth: ClassVar[Stealth] = "largest distance"

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> Crafted:
        return seen.own * 9, state


@dataclass(frozen=True)
class InPlace(ScaledUpdate):
    def poison(self, examples: Examples, attacker: Tensor, key: Tensor) -> Poison:
        examples.columns["y"].zero_()
        return super().poison(examples, attacker, key)

    poisons: ClassVar[bool] = True


@dataclass(frozen=True)
class Unkeyed(RandomUpdate):
    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> Crafted:
        return torch.randn_like(seen.own), state


@dataclass(frozen=True)
class Colluding(RandomUpdate):
    """Colludes, and does not say so."""

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> Crafted:
        return seen.own.mean(0) + seen.own.flip(0), state


@dataclass(frozen=True)
class Forgetful(ScaledUpdate):
    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> Crafted:
        return seen.own, {"new": torch.zeros(())}


@dataclass(frozen=True)
class NotANumber(ScaledUpdate):
    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> Crafted:
        return seen.own.mean(0) - seen.own.std(0).expand_as(seen.own), state

    @property
    def knows(self) -> Knowledge:
        return "colluders"


@dataclass(frozen=True)
class NoSuchClass(LabelFlip):
    def poison(self, examples: Examples, attacker: Tensor, key: Tensor) -> Poison:
        found = super().poison(examples, attacker, key)
        return found._replace(columns={**found.columns, "y": found.columns["y"] + 1})


@dataclass(frozen=True)
class Idle(Attack):
    pass


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (WrongGamma, "no farther than the largest distance of honest updates"),
        (SumForMax, "no farther than the largest distance"),
        (InPlace, "leaves examples alone"),
        (Unkeyed, "gives the same twice"),
        (Colluding, "other attackers' updates are not looked at"),
        (Forgetful, "the state keeps its structure"),
        (NotANumber, "numbers arrive"),
        (NoSuchClass, "has a class that exists"),
        (Idle, "does something"),
    ],
)
def test_an_attack_that_is_wrong_is_refused(wrong: type[Attack], words: str) -> None:
    with pytest.raises(ConformanceError, match=words):
        check_attack(wrong())


def test_the_command_knows_an_attack() -> None:
    kind, names = check_anything(MinMax, {"direction": "unit"})
    assert kind == "an attack"
    assert "stays within the largest distance of honest updates" in names
    with pytest.raises(ConformanceError, match="a wrong gamma"):
        check_anything(WrongGamma, {})
