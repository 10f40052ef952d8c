"""Figures of a suite that no table of runs can hold: what updates leak, and cards of methods side by side.

A suite declares them as data, [[leakage]] and [[card]]; `leakage_figure.py` draws the first kind, the room of cards
the second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from atoll.attacks.leakage import AttackOptions
from atoll.core import Count, Table
from atoll.experiment import check_options, schema, unknown_option

IMAGES = "images"  # an x that is an option of the attack; others are paths of the experiment, such as local.epochs
SCORES = ("label_accuracy", "l2", "mse", "psnr", "ssim", "identified")
Part = Mapping[str, Any]


class LeakageTable(Table):
    """[[leakage]]: the same attacks on every series, at every value of x."""

    name: str
    title: str = ""
    x: str = ""
    values: list[int | float] = Field(default_factory=list)
    scores: Annotated[list[str], Field(min_length=1, default_factory=lambda: ["label_accuracy", "l2"])]
    base: dict[str, Any] = Field(default_factory=dict)
    series: dict[str, Any]
    attack: dict[str, Any]


class CardTable(Table):
    """[[card]]: the methods of one row of the table, scored on all axes."""

    name: str
    title: str = ""
    row: dict[str, str]  # a value of every axis but the last
    methods: Annotated[list[str], Field(min_length=1)]  # values of the last axis
    # rules of the scores; the first gives the card
    profiles: Annotated[list[str], Field(min_length=1, default_factory=lambda: ["atoll"])]
    seeds: Count = 3  # at most: a size may have fewer
    rounds: Count | None = None
    attacks: list[str] = Field(default_factory=list)
    base: dict[str, Any] = Field(default_factory=dict)  # after the values


@dataclass(frozen=True)
class LeakageFigure:
    """One figure: scores of attacks against x, a line for each series and attack."""

    name: str
    series: Mapping[str, Part]
    attack: Mapping[str, Part]  # options, by what the attack is called here
    title: str = ""
    x: str = ""
    values: tuple[int | float, ...] = ()
    scores: tuple[str, ...] = ("label_accuracy", "l2")
    base: Part = field(default_factory=dict)


@dataclass(frozen=True)
class CardFigure:
    """One card: which cells of the suite are its methods."""

    name: str
    row: Mapping[str, str]
    methods: tuple[str, ...]
    title: str = ""
    profiles: tuple[str, ...] = ("atoll",)
    seeds: int = 3
    rounds: int | None = None
    attacks: tuple[str, ...] = ()
    base: Part = field(default_factory=dict)


def check_leakage(tables: Sequence[Any], at: str = "leakage") -> tuple[list[dict[str, Any]], list[str]]:
    """Every [[leakage]], and what is wrong with it."""
    checked, problems = _checked(LeakageTable, tables, at, "a figure of leakage")
    for table in checked:
        where = f"{at}.{table.get('name', '?')}"
        for name, options in table.get("attack", {}).items():
            _, wrong = check_options(schema(AttackOptions), options, f"{where}.attack.{name}", "an attack on privacy")
            problems += wrong
        for score in table.get("scores", ()):
            if score not in SCORES:
                problems.append(f"{where}.scores: there is no {score!r}. Use {', '.join(SCORES)}.")
        if bool(table.get("x")) != bool(table.get("values")):
            problems.append(f"{where}: x and values go together. Give both, or neither for one point of each series.")
    return checked, problems


def check_cards(
    tables: Sequence[Any], axes: Sequence[str], values: Mapping[str, Mapping[str, Any]], at: str = "card"
) -> tuple[list[dict[str, Any]], list[str]]:
    """Every [[card]], and what is wrong with it."""
    checked, problems = _checked(CardTable, tables, at, "a card")
    for table in checked:
        problems += list(_wrong_cells(table, f"{at}.{table.get('name', '?')}", axes, values))
    return checked, problems


def _wrong_cells(
    table: Mapping[str, Any], at: str, axes: Sequence[str], values: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    if list(table.get("row", {})) != list(axes[:-1]):
        yield f"{at}.row: must name a value of each of {', '.join(axes[:-1])}, in this order."
        return
    picks = [(f"{at}.row.{axis}", axis, [name]) for axis, name in table["row"].items()]
    for where, axis, names in (*picks, (f"{at}.methods", axes[-1], table.get("methods", []))):
        for name in names:
            if name not in values[axis]:
                yield unknown_option(where, name, f"the axis {axis}", values[axis])


def _checked(kind: type[Table], tables: Sequence[Any], at: str, owner: str) -> tuple[list[dict[str, Any]], list[str]]:
    checked: list[dict[str, Any]] = []
    problems: list[str] = []
    for number, table in enumerate(tables):
        if not isinstance(table, Mapping):
            problems.append(f"{at}.{number}: must be a table. Write [[{at}]] with double brackets.")
            continue
        clean, wrong = check_options(schema(kind), table, f"{at}.{table.get('name', number)}", owner)
        checked.append(clean)
        problems += wrong
    return checked, problems
