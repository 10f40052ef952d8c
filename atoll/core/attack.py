"""What clients that mean harm do: to their examples before they train, and to their updates before the server reduces.

An attack states what it knows, and is given nothing else: rows of others are not there where it may not see them.
"""

# Annotations are read where a subclass stands, which need not import their types: they are no strings here.

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias

import torch
from pydantic import Field
from torch import Tensor

from atoll.core.table import Count
from atoll.tree import Tree

Knowledge: TypeAlias = Literal["own", "colluders", "everybody", "defence"]
Stealth: TypeAlias = Literal["", "largest distance", "sum of distances"]

KNOWS: dict[Knowledge, str] = {  # in words, from little to much
    "own": "its own update",
    "colluders": "the updates of all attackers",
    "everybody": "everybody's updates",
    "defence": "everybody's updates and the defence",
}


def sees_all(knowledge: Knowledge) -> bool:
    """Does it see what honest clients send?"""
    return knowledge in ("everybody", "defence")


@dataclass(frozen=True, eq=False)
class AdversaryView:
    """What the attackers of a round see: updates as rows of numbers, as they would arrive at the server."""

    ids: Tensor  # (M,) the attackers of the cohort, rising
    own: Tensor  # (M, D) what they trained
    honest: Tensor  # (H, D) what the others send; (0, D) for an attack that may not see it
    cohort: int  # clients whose updates arrive, C
    reduce: Callable[[Tensor], Tensor] | None = None  # the defence: rows (M, D) of the attackers -> the aggregate (D,)

    @property
    def benign(self) -> Tensor:
        """The updates to hide among: those of honest clients where they are seen, else what the attackers trained."""
        return self.honest if len(self.honest) else self.own

    def alike(self, row: Tensor) -> Tensor:
        """The same row from every attacker."""
        return row.expand_as(self.own)


class Examples(NamedTuple):
    """Rows of data as an attacker has them."""

    columns: Tree  # {"x": (n, ...), "y": (n,)}
    classes: int
    high: float  # the largest input of the training data: white


class Poison(NamedTuple):
    """Which of some rows are replaced, and by what."""

    places: Tensor  # (P,) rising
    columns: Tree  # (P, ...)


@dataclass(frozen=True, kw_only=True)
class Attack:
    """Who attacks and when; the hooks do nothing unless an attack says otherwise.

    Give `share` of all clients, drawn from the seed (a larger share holds a smaller one), or `clients` by number or
    name. Rounds `start` to `stop`, both included and counted from 1; without `stop` to the end.
    """

    poisons: ClassVar[bool] = False  # does it change examples?
    stealth: ClassVar[Stealth] = ""  # how near crafted updates stay to honest ones: what the kit holds it to

    share: Annotated[float, Field(ge=0, le=1)] | None = None
    clients: list[int | str] | None = None
    start: Count = 1
    stop: Count | None = None

    @property
    def knows(self) -> Knowledge:
        """What it sees before it acts."""
        return "own"

    @property
    def crafts(self) -> bool:
        """Does it replace updates?"""
        return type(self).craft is not Attack.craft

    def active(self, number: int) -> bool:
        """In this round, counted from 0?"""
        return self.start <= number + 1 and (self.stop is None or number < self.stop)

    def init(self, size: int) -> Tree:
        """What the attackers keep between rounds, for updates of so many numbers."""
        return {}

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        """What the attackers send, (M, D), and what they keep. Pure; draws are addressed by client id."""
        return seen.own, state

    def observe(self, aggregate: Tensor, state: Tree) -> Tree:
        """What they keep after a round, which showed them how the model moved, (D,): also while they are idle."""
        return state

    def poison(self, examples: Examples, attacker: Tensor, key: Tensor) -> Poison:
        """The attackers' training rows and which of the attackers holds each, (n,); what becomes of them."""
        return Poison(torch.zeros(0, dtype=torch.int64), {k: v[:0] for k, v in examples.columns.items()})

    def probe(self, test: Examples, key: Tensor) -> Tree | None:
        """Test examples with the class that the attack wants for each: the share that gets it is its success."""
        return None
