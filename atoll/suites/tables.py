"""The file of a suite, checked: everything that is wrong at once, each with where, what and what instead."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import Field

from atoll.core import Count, Table
from atoll.errors import ConfigError
from atoll.experiment import Experiment, check_options, did_you_mean, schema, short_toml, unknown_option
from atoll.suites.figures import check_cards, check_leakage
from atoll.tasks import METRICS

Words = Annotated[list[str], Field(min_length=1)]
Grid = dict[str, Any]
Tuning = Literal["validation", "paper", "none"]


class SuiteTable(Table):
    """The top of the file; values, blocks and sizes are tables of their own."""

    title: str
    about: str = ""
    metric: str = "accuracy"
    better: Literal["higher", "lower"] = "higher"
    scale: Annotated[float, Field(gt=0)] = 1.0
    reference: str | None = None
    seeds: Count = 3
    trials: Count = 1
    tuning: Tuning = "none"
    axes: Words
    baseline: dict[str, str] = Field(default_factory=dict)
    reach: Annotated[float, Field(gt=0, le=1)] | None = None
    worst_over: str | None = None
    base: dict[str, Any] = Field(default_factory=dict)
    value: dict[str, Any]
    block: list[Any] = Field(default_factory=list)
    missing: list[Any] = Field(default_factory=list)
    leakage: list[Any] = Field(default_factory=list)
    card: list[Any] = Field(default_factory=list)
    size: dict[str, Any] = Field(default_factory=dict)


class ValueTable(Table):
    """What [value.axis.name] holds beside parts of an experiment; all but the first three only on the last axis."""

    quirk: str | None = None
    stands_for: str | None = None
    let: dict[str, int | float] = Field(default_factory=dict)
    grid: Grid = Field(default_factory=dict)
    published_grid: Grid = Field(default_factory=dict)
    trials: Count | None = None
    why: str | None = None


class BlockTable(Table):
    """What [[block]] holds beside axes."""

    name: str
    title: str = ""
    base: dict[str, Any] = Field(default_factory=dict)
    seeds: Count | None = None
    reference: str | None = None


class SizeTable(Table):
    """[size.name]."""

    seeds: Count | None = None
    trials: Count | None = None
    tuning: Tuning | None = None
    blocks: Words | None = None
    only: Words | None = None
    figures: list[str] | None = None  # of leakage and cards, by name; None: all, []: none
    base: dict[str, Any] = Field(default_factory=dict)
    deviates: str = ""  # from the published settings, in words: its cells are judged all the same, and say so


class MissingTable(Table):
    """[[missing]]."""

    cells: str
    why: str


_EVERY_AXIS = ("quirk", "stands_for", "let")


def check(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of the file with every default, or one ConfigError."""
    if "sweep" in raw and "axes" not in raw:
        raise ConfigError("sweep: this is a sweep, not a suite: use atoll sweep. A suite has axes and values.")
    if "axes" not in raw and "algorithm" in raw:
        raise ConfigError("axes: is missing; this looks like a single experiment: use atoll run for it.")
    clean, problems = check_options(schema(SuiteTable), raw, "", "a suite")
    if problems:
        raise ConfigError(problems)
    axes: list[str] = clean["axes"]
    problems += _axes(axes, clean["value"]) + _metric(clean["metric"]) + _reference("reference", clean.get("reference"))
    problems += part(clean["base"], "base")
    clean["value"], wrong = _values(axes, clean["value"])
    problems += _baseline(clean["baseline"], clean["value"]) + _worst_over(clean.get("worst_over"), axes)
    clean["block"], more = _blocks(axes, clean["block"], clean["value"])
    clean["missing"], lost = _each(MissingTable, clean["missing"], "missing", "a missing cell")
    clean["leakage"], unclear = check_leakage(clean["leakage"])
    clean["card"], unscored = check_cards(clean["card"], axes, clean["value"])
    figures = [f["name"] for f in (*clean["leakage"], *clean["card"]) if "name" in f]
    clean["size"], sizes = _sizes(clean["size"], [b["name"] for b in clean["block"] if "name" in b], figures)
    problems += wrong + more + lost + unclear + unscored + _twice(figures) + sizes
    if problems:
        raise ConfigError(problems)
    return clean


def part(table: Mapping[str, Any], at: str, also: Collection[str] = ()) -> list[str]:
    """What is wrong with the names in an experiment in part; its values are checked with the cells."""
    known, problems = schema(Experiment), []
    for key, value in table.items():
        if key in also:
            continue
        if key not in known:
            problems.append(unknown_option(f"{at}.{key}", key, "an experiment", [*known, *also]))
            continue
        inside = known[key].table
        if key == "seed" and also:
            problems.append(f"{at}.seed: seeds are the same for all cells, so that they are paired. Set base.seed.")
        elif inside is not None and not isinstance(value, Mapping):
            problems.append(f"{at}.{key}: must be a table (got {short_toml(value)}).")
        elif inside is not None:
            problems += [unknown_option(f"{at}.{key}.{k}", k, key, inside) for k in value if k not in inside]
    return problems


def _axes(axes: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    problems = [f"axes: {axis!r} is there twice. Keep one." for axis in dict.fromkeys(axes) if axes.count(axis) > 1]
    taken = set(BlockTable.model_fields) & set(axes)
    problems += [f"axes: {axis!r} is a key of every block. Call the axis something else." for axis in sorted(taken)]
    for axis in values:
        if axis not in axes:
            guess = did_you_mean(axis, axes)
            problems.append(f"value.{axis}: {axis!r} is none of the axes.{guess} Axes: {', '.join(axes)}.")
    for axis in dict.fromkeys(axes):
        there = values.get(axis)
        if not isinstance(there, Mapping) or not there:
            problems.append(f"axes: {axis!r} has no values. Add a table [value.{axis}.NAME] for each of them.")
    return problems


_SECONDS = "clock.end"  # virtual, until a run ends: with stop.target the time to an accuracy


def _metric(metric: str) -> list[str]:
    """A name that no record will ever hold is refused before anything runs."""
    head, *rest = metric.split(".")
    name = rest[0] if head in ("clients", "after") and len(rest) == 2 else metric
    if name in METRICS or re.fullmatch(r"top\d+_accuracy", name) or name in ("train_loss", _SECONDS):
        return []
    guess = did_you_mean(name, METRICS)
    return [f"metric: {metric!r} is not known.{guess} Known: {', '.join(METRICS)}, topK_accuracy."]


def _baseline(baseline: Mapping[str, str], values: Mapping[str, Any]) -> list[str]:
    """Values that no axis has would be compared with by nobody."""
    problems = []
    for axis, name in baseline.items():
        if axis not in values:
            guess = did_you_mean(axis, values)
            problems.append(f"baseline.{axis}: {axis!r} is none of the axes.{guess} Axes: {', '.join(values)}.")
        elif name not in values[axis]:
            guess = did_you_mean(name, values[axis])
            problems.append(f"baseline.{axis}: {name!r} is no value of it.{guess} Known: {', '.join(values[axis])}.")
    return problems


def _worst_over(axis: str | None, axes: Sequence[str]) -> list[str]:
    """The last axis holds what is compared, so the worst is over another one."""
    rows = axes[:-1]
    if axis is None or axis in rows:
        return []
    what = "holds what is compared" if axis in axes else f"is none of the axes.{did_you_mean(axis, rows)}"
    return [f"worst_over: {axis!r} {what} Use one of {', '.join(rows) or 'two axes or more'}."]


def _reference(at: str, name: str | None) -> list[str]:
    folder = files("atoll.records") / "reference"
    if not name or not folder.is_dir():
        return []
    known = sorted(p.name.removesuffix(".csv") for p in folder.iterdir() if p.name.endswith(".csv"))
    guess = did_you_mean(name, known)
    return [] if name in known else [f"{at}: {name!r} is not known.{guess} Known: {', '.join(known)}."]


def _values(axes: Sequence[str], tables: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    problems: list[str] = []
    for axis in axes:
        there = tables.get(axis)
        values[axis] = {}
        for name, table in there.items() if isinstance(there, Mapping) else ():
            at = f"value.{axis}.{name}"
            if not isinstance(table, Mapping):
                problems.append(
                    f"{at}: must be a table (got {short_toml(table)}). Write [{at}] and what it changes below."
                )
                continue
            values[axis][name], wrong = _value(table, at, last=axis == axes[-1])
            problems += wrong + _name(at, name)
    return values, problems


def _name(at: str, name: str) -> list[str]:
    if name and name == name.strip() and not re.search(r"[/\n\t*?]", name):
        return []
    return [f"{at}: a cell is called by its values, with / between: {name!r} cannot hold / * ? or a line break."]


def _value(table: Mapping[str, Any], at: str, last: bool) -> tuple[dict[str, Any], list[str]]:
    options = {k: v for k, v in schema(ValueTable).items() if last or k in _EVERY_AXIS}
    own = {k: v for k, v in table.items() if k in ValueTable.model_fields}
    clean, problems = check_options(options, {k: v for k, v in own.items() if k in options}, at, "a value")
    for key in own.keys() - options.keys():
        problems.append(f"{at}.{key}: belongs to what is compared. Put it on a value of the last axis.")
    problems += part(table, at, list(ValueTable.model_fields))
    for key in ("grid", "published_grid"):
        if key in clean:
            clean[key] = dict(_flat(clean[key]))
            problems += _grid(clean[key], f"{at}.{key}")
    if clean.get("trials") is not None and not clean.get("why"):
        problems.append(f'{at}.trials: takes fewer trials than the others, so it must say why = "...".')
    changes = {k: v for k, v in table.items() if k not in ValueTable.model_fields}
    return {"changes": changes, **clean}, problems


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted paths, with and without quotes alike."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _grid(grid: Mapping[str, Any], at: str) -> list[str]:
    problems = []
    for path, values in grid.items():
        first = path.split(".")[0]
        if first not in schema(Experiment):
            problems.append(unknown_option(f"{at}.{path}", first, "an experiment", schema(Experiment)))
        elif not isinstance(values, list) or not values:
            problems.append(f"{at}.{path}: must be a list of values (got {short_toml(values)}). Example: [0.01, 0.1]")
        elif any(value in values[:i] for i, value in enumerate(values)):
            problems.append(f"{at}.{path}: holds a value twice, which would waste a trial. Keep one.")
    return problems


def _blocks(
    axes: Sequence[str], tables: Sequence[Any], values: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    known = [*axes, *BlockTable.model_fields]
    plain = [
        {k: v for k, v in t.items() if k in BlockTable.model_fields} if isinstance(t, Mapping) else t for t in tables
    ]
    blocks, problems = _each(BlockTable, plain, "block", "a block")
    names = [b.get("name") for b in blocks]
    problems += [f"block: {n!r} is the name of two blocks." for n in dict.fromkeys(names) if n and names.count(n) > 1]
    for i, (table, clean) in enumerate(zip(tables, blocks, strict=True)):
        at = f"block.{clean.get('name', i)}"
        strange = [k for k in table if k not in known] if isinstance(table, Mapping) else []
        problems += [unknown_option(f"{at}.{k}", k, "a block", known) for k in strange]
        problems += part(clean.get("base", {}), f"{at}.base") + _reference(f"{at}.reference", clean.get("reference"))
        for axis in axes if isinstance(table, Mapping) else ():
            if axis in table:
                clean[axis] = table[axis]
                problems += _chosen(table[axis], f"{at}.{axis}", values.get(axis, {}), "value of this axis")
    return blocks, problems


def _chosen(names: Any, at: str, known: Collection[str], what: str) -> list[str]:
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        return [f"{at}: must be a list of values (got {short_toml(names)}). To take all of them leave it out."]
    problems = [f"{at}: {n!r} is there twice. Keep one." for n in dict.fromkeys(names) if names.count(n) > 1]
    for name in names:
        if name not in known:
            guess = did_you_mean(name, known)
            problems.append(f"{at}: {name!r} is no {what}.{guess} Known: {', '.join(known)}.")
    return problems


def _each(kind: type[Table], tables: Sequence[Any], at: str, owner: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Every table of a list, checked."""
    checked: list[dict[str, Any]] = []
    problems: list[str] = []
    for i, table in enumerate(tables):
        if not isinstance(table, Mapping):
            problems.append(
                f"{at}.{i}: must be a table (got {short_toml(table)}). Write [[{at}]] with double brackets."
            )
            checked.append({})
            continue
        clean, wrong = check_options(schema(kind), table, f"{at}.{table.get('name', i)}", owner)
        checked.append(clean)
        problems += wrong
    return checked, problems


def _twice(figures: Sequence[str]) -> list[str]:
    return [f"figure {n!r}: is the name of two." for n in dict.fromkeys(figures) if figures.count(n) > 1]


def _sizes(
    tables: Mapping[str, Any], blocks: Sequence[str], figures: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    sizes: dict[str, Any] = {}
    problems: list[str] = []
    for name, table in tables.items():
        at = f"size.{name}"
        if not isinstance(table, Mapping):
            problems.append(f"{at}: must be a table (got {short_toml(table)}). Write [{at}] and what it changes below.")
            continue
        sizes[name], wrong = check_options(schema(SizeTable), table, at, "a size")
        problems += wrong + part(sizes[name].get("base", {}), f"{at}.base")
        chosen = sizes[name].get("blocks")
        problems += _chosen(chosen, f"{at}.blocks", blocks, "block") if chosen else []
        drawn = sizes[name].get("figures")
        problems += _chosen(drawn, f"{at}.figures", figures, "figure") if drawn else []
    return sizes, problems
