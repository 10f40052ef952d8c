"""A suite: which experiments make a table, what is reported of them, and what it is compared with.

>>> suite = parse({"title": "A small one", "axes": ["algorithm"], "trials": 1, "tuning": "none",
...                "base": {"rounds": 2, "data": "digits", "partition": {"name": "iid", "clients": 4}},
...                "value": {"algorithm": {"fedavg": {"algorithm": {"name": "fedavg", "lr": 0.1}}}}}, "small")
>>> suite.blocks[0].values, suite.seeds
({'algorithm': ('fedavg',)}, 3)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from atoll.errors import ConfigError
from atoll.experiment import did_you_mean
from atoll.experiment import read as read_file
from atoll.records import Tuning
from atoll.suites.figures import CardFigure, LeakageFigure
from atoll.suites.tables import check

FULL = "full"
Part = Mapping[str, Any]  # an experiment in part


@dataclass(frozen=True)
class Value:
    """One value of an axis: what it changes, and how its settings may be found."""

    changes: Part
    grid: Mapping[str, list[Any]] = field(default_factory=dict)
    published_grid: Mapping[str, list[Any]] = field(default_factory=dict)
    quirk: str | None = None
    stands_for: str | None = None
    let: Mapping[str, float] = field(default_factory=dict)  # numbers that other values may name: "$f"
    trials: int | None = None  # fewer than the suite's, and
    why: str | None = None  # the reason


@dataclass(frozen=True)
class Block:
    """A part of the suite: a product of values."""

    name: str
    values: Mapping[str, tuple[str, ...]]  # by axis
    title: str = ""
    base: Part = field(default_factory=dict)
    seeds: int | None = None
    reference: str | None = None  # None: the suite's; "": none


@dataclass(frozen=True)
class Size:
    """A size of the suite: what it changes."""

    seeds: int | None = None
    trials: int | None = None
    tuning: Tuning | None = None
    blocks: tuple[str, ...] | None = None
    only: tuple[str, ...] | None = None
    figures: tuple[str, ...] | None = None
    base: Part = field(default_factory=dict)
    deviates: str = ""  # how it differs from the published settings, where its cells are judged all the same


@dataclass(frozen=True)
class Missing:
    """Published cells that cannot be had, and why."""

    cells: str
    why: str


@dataclass(frozen=True)
class Suite:
    """A whole suite, checked; `at` applies one of its sizes."""

    name: str
    title: str
    about: str
    metric: str
    better: str
    scale: float
    reference: str | None
    seeds: int
    trials: int
    tuning: Tuning
    axes: tuple[str, ...]
    base: Part
    values: Mapping[str, Mapping[str, Value]]  # axis -> name -> value
    blocks: tuple[Block, ...]
    missing: tuple[Missing, ...] = ()
    sizes: Mapping[str, Size] = field(default_factory=dict)
    size: str = FULL
    only: tuple[str, ...] = ()  # patterns of the size
    last: Part = field(default_factory=dict)  # what the size changes in every experiment, after the values
    deviates: str = ""  # of the size
    baseline: Mapping[str, str] = field(default_factory=dict)  # what bytes are compared with: values of some axes
    reach: float | None = None  # bytes until this share of what the baseline has at the end
    worst_over: str | None = None  # the axis whose worst value counts: the worst attack for every defence
    leakage: tuple[LeakageFigure, ...] = ()
    cards: tuple[CardFigure, ...] = ()

    @property
    def higher(self) -> bool:
        """Is more of the metric better?"""
        return self.better == "higher"

    def at(self, name: str) -> Suite:
        """The suite at one of its sizes."""
        known = list(dict.fromkeys([*self.sizes, FULL]))
        if name not in known:
            guess = did_you_mean(name, known)
            raise ConfigError(f"--size: {self.name} has no size {name!r}.{guess} Sizes: {', '.join(known)}.")
        size = self.sizes.get(name, Size())
        blocks = [b if size.seeds is None else replace(b, seeds=None) for b in self.blocks]
        return replace(
            self,
            size=name,
            seeds=size.seeds or self.seeds,
            trials=size.trials or self.trials,
            tuning=size.tuning or self.tuning,
            blocks=tuple(b for b in blocks if size.blocks is None or b.name in size.blocks),
            only=size.only or (),
            last=size.base,
            deviates=size.deviates,
            leakage=tuple(f for f in self.leakage if size.figures is None or f.name in size.figures),
            cards=tuple(f for f in self.cards if size.figures is None or f.name in size.figures),
        )


def shipped() -> list[str]:
    """The names of the suites that come with the package."""
    folder = files("atoll.suites") / "shipped"
    if not folder.is_dir():
        return []
    return sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))


def read(which: str | Path) -> Suite:
    """The suite of that name, or in the file at that path."""
    known = shipped()
    if str(which) in known:
        with as_file(files("atoll.suites") / "shipped" / f"{which}.toml") as path:
            return parse(read_file(path), str(which))
    if _is_path(which):
        return parse(read_file(which), Path(which).stem)
    guess = did_you_mean(str(which), known)
    listed = f" Suites: {', '.join(known)}." if known else ""
    raise ConfigError(f"suite: {str(which)!r} is not known.{guess}{listed} Or name a file: {which}.toml.")


def parse(raw: Mapping[str, Any], name: str) -> Suite:
    """The suite that a file describes, or one ConfigError with everything that is wrong."""
    clean = check(raw)
    axes, values = tuple(clean["axes"]), clean["value"]
    given = {axis: {n: Value(**v) for n, v in values[axis].items()} for axis in axes}
    blocks = [_block(b, given) for b in clean["block"]] or [_block({"name": "all"}, given)]
    sizes = {n: Size(**_frozen(s)) for n, s in clean["size"].items()}
    plain = ("title", "about", "metric", "better", "scale", "seeds", "trials", "tuning", "base", "baseline")
    return Suite(
        name=name,
        **{key: clean[key] for key in plain},
        reference=clean.get("reference") or None,
        axes=axes,
        values=given,
        blocks=tuple(blocks),
        missing=tuple(Missing(**m) for m in clean["missing"]),
        sizes=sizes,
        reach=clean.get("reach"),
        worst_over=clean.get("worst_over"),
        leakage=tuple(LeakageFigure(**_frozen(f)) for f in clean["leakage"]),
        cards=tuple(CardFigure(**_frozen(f)) for f in clean["card"]),
    )


def _block(table: Mapping[str, Any], given: Mapping[str, Mapping[str, Value]]) -> Block:
    values = {axis: tuple(table.get(axis) or known) for axis, known in given.items()}
    return Block(values=values, **{k: v for k, v in table.items() if k not in given})


def _frozen(table: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}


def _is_path(which: str | Path) -> bool:
    return isinstance(which, Path) or which.endswith(".toml") or "/" in which or Path(which).exists()


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names in a row, the first few of many."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
