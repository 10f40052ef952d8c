"""From a suite to its places: the cells of the table, each with the experiment it stands for."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atoll.errors import ConfigError
from atoll.experiment import closest_name, override
from atoll.suites.merge_tables import filled, merged
from atoll.suites.suite import Block, Suite, Value, listed


@dataclass(frozen=True)
class Place:
    """One cell of the table: where it stands, and its experiment but for tuned settings and the seed."""

    block: str
    path: Mapping[str, str]
    base: Mapping[str, Any]
    seeds: tuple[int, ...]
    trials: int  # settings to try, with --tuning validation
    grid: Mapping[str, list[Any]] = field(default_factory=dict)
    published_grid: Mapping[str, list[Any]] = field(default_factory=dict)
    quirk: str | None = None
    stands_for: str | None = None
    why: str | None = None  # it has fewer trials than others

    @property
    def name(self) -> str:
        """fmnist/dirichlet(0.5)/fedavg."""
        return "/".join(self.path.values())

    @property
    def key(self) -> tuple[str, str]:
        """Unique in its suite."""
        return self.block, self.name


def places(suite: Suite, overrides: Sequence[str] = (), seeds: int | None = None) -> list[Place]:
    """Every place of a suite at its size, block by block, the last axis fastest.

    `overrides` such as "rounds=5" come after everything but tuned settings; `seeds` instead of the suite's number.
    """
    candidates = [
        _place(suite, block, dict(zip(suite.axes, pick, strict=True)), overrides, seeds)
        for block in suite.blocks
        for pick in itertools.product(*(block.values[axis] for axis in suite.axes))
    ]
    return only(candidates, suite.only, suite.axes, f"size.{suite.size}.only") if suite.only else candidates


def cells_at(suite: Suite, row: Mapping[str, str], overrides: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """The experiments of one row by value of the last axis, whatever the table leaves out of them."""
    last = suite.axes[-1]
    block = next((b for b in suite.blocks if all(name in b.values[axis] for axis, name in row.items())), None)
    if block is None:
        return {}
    names = suite.values[last]
    return {name: dict(_place(suite, block, {**row, last: name}, overrides, None).base) for name in names}


def _place(suite: Suite, block: Block, path: dict[str, str], overrides: Sequence[str], seeds: int | None) -> Place:
    values = [suite.values[axis][name] for axis, name in path.items()]
    base = merged(suite.base, block.base)
    for value in values:
        base = merged(base, value.changes)
    base = override(merged(base, suite.last), [o.removeprefix("base.") for o in overrides])
    numbers = {name: number for value in values for name, number in value.let.items()}
    base = filled(base, numbers, "/".join(path.values()))
    first, last = base.pop("seed", 0), values[-1]
    number = seeds or block.seeds or suite.seeds
    plain = isinstance(first, int) and not isinstance(first, bool)
    return Place(
        block=block.name,
        path=path,
        base=base,
        seeds=tuple(first + i for i in range(number)) if plain else (first,),  # what is no number is refused later
        trials=min(suite.trials, last.trials or suite.trials),
        grid=last.grid,
        published_grid=last.published_grid,
        quirk="; ".join(v.quirk for v in values if v.quirk) or None,
        stands_for=_stands_for(path, values),
        why=last.why,
    )


def _stands_for(path: Mapping[str, str], values: Sequence[Value]) -> str | None:
    """The published place that it is compared with, where that is another."""
    if not any(v.stands_for for v in values):
        return None
    return "/".join(v.stands_for or name for name, v in zip(path.values(), values, strict=True))


def only(candidates: Sequence[Place], patterns: Sequence[str], axes: Sequence[str], at: str = "--only") -> list[Place]:
    """The places that one of the patterns matches; a pattern that matches none is refused.

    `*` is anything and `?` any character; all others mean themselves. With or without the block in front:
    "fmnist/*", "images:fmnist/*".
    """
    matchers = {pattern: matcher(pattern) for pattern in patterns}
    problems = [
        _nothing(pattern, candidates, axes, at)
        for pattern, matches in matchers.items()
        if not any(_matches(matches, place) for place in candidates)
    ]
    if problems:
        raise ConfigError(problems)
    return [place for place in candidates if not matchers or any(_matches(m, place) for m in matchers.values())]


def matcher(pattern: str) -> re.Pattern[str]:
    """A pattern for whole names.

    >>> bool(matcher("a[1]/*").fullmatch("a[1]/dirichlet(0.5)/fedavg"))
    True
    """
    return re.compile("".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in pattern), re.DOTALL)


def _matches(pattern: re.Pattern[str], place: Place) -> bool:
    return bool(pattern.fullmatch(place.name) or pattern.fullmatch(f"{place.block}:{place.name}"))


def _nothing(pattern: str, candidates: Sequence[Place], axes: Sequence[str], at: str) -> str:
    """What was meant, as far as that can be said value by value."""
    block, _, rest = pattern.rpartition(":")
    blocks = list(dict.fromkeys(p.block for p in candidates))
    known = [list(dict.fromkeys(p.path[axis] for p in candidates)) for axis in axes]
    words = rest.split("/")
    meant = [_nearest(word, names) for word, names in zip(words, known, strict=False)] + words[len(known) :]
    head = f"{_nearest(block, blocks)}:" if block else ""
    wider = [head + "/".join([*meant[:-1], "*"])] if len(meant) > 1 else []
    for suggestion in (head + "/".join(meant), *wider, *_nearest_names(pattern, candidates)):
        if any(_matches(matcher(suggestion), p) for p in candidates):
            guess = f" Did you mean {suggestion!r}?"
            break
    else:
        guess = f" A name is {'/'.join(axes)}, such as {candidates[0].name!r}." if candidates else ""
    lists = "; ".join(f"{axis}: {listed(names)}" for axis, names in zip(axes, known, strict=True))
    return f"{at} {pattern!r}: matches none of the {len(candidates)} cells.{guess} Values of {lists}."


def _nearest(word: str, known: Sequence[str]) -> str:
    wild = any(c in word for c in "*?")
    return word if wild or word in known else closest_name(word, known) or word


def _nearest_names(pattern: str, candidates: Sequence[Place]) -> list[str]:
    meant = closest_name(pattern, [p.name for p in candidates])
    return [meant] if meant else []
