"""The [sweep] table, checked: which keys take which values, and how the cells are to be run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from atoll.core import Count, Table, Whole
from atoll.errors import ConfigError
from atoll.experiment import (
    CATALOGUE,
    GIVEN,
    Argument,
    Experiment,
    check_options,
    find_builder,
    override,
    schema,
    short_toml,
    unknown_option,
)

Amount = Annotated[float, Field(ge=0)]


class Resources(Table):
    """resources: what one task takes of a cluster."""

    cpus: Amount = 1.0
    gpus: Amount | None = None  # None: 1 with --device cuda, else 0


class Options(Table):
    """What [sweep] holds beside its axes."""

    seeds: Count | Annotated[list[Whole], Field(min_length=1)] | None = None
    stack: bool = True
    resources: Resources = Resources()


@dataclass(frozen=True)
class SweepTable:
    """Axes in the order of the file, seeds last; the product of their values is the sweep."""

    axes: dict[str, list[Any]]
    stack: bool
    resources: Resources


def change(raw: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of a file with changes like those of a run; "sweep.algorithm.mu=[1, 2]" replaces that axis, or adds it."""
    changed = override(raw, [o for o in overrides if not _is_axis(o)])
    for assignment in filter(_is_axis, overrides):
        path, _, value = (part.strip() for part in assignment.removeprefix("sweep.").partition("="))
        there = changed.get("sweep", {})
        values = override({}, [f"values={value}"])["values"]
        changed["sweep"] = {**(_without(there, path) if isinstance(there, Mapping) else {}), path: values}
    return changed


def _is_axis(assignment: str) -> bool:
    keys = assignment.partition("=")[0].split(".")
    return keys[0] == "sweep" and len(keys) > 1 and keys[1].strip() not in Options.model_fields and "=" in assignment


def _without(table: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The table without an axis, however it was written."""
    others = {k: v for k, v in table.items() if k != path}
    head, _, rest = path.partition(".")
    if rest and isinstance(others.get(head), Mapping):
        others[head] = _without(others[head], rest)
    return others


def read(raw: Mapping[str, Any]) -> tuple[dict[str, Any], SweepTable]:
    """The experiment that all cells start from, and the sweep; or one ConfigError with everything that is wrong."""
    table = raw.get("sweep") if isinstance(raw, Mapping) else None
    if table is None:
        raise ConfigError(
            "sweep: there is no [sweep] table. For a single run use atoll run; for a sweep add the table, "
            'with seeds = 3 or an axis such as "algorithm.lr" = [0.05, 0.1].'
        )
    if not isinstance(table, Mapping):
        raise ConfigError(f"sweep: must be a table (got {short_toml(table)}). Write [sweep] and its axes below that.")
    base = {str(k): v for k, v in raw.items() if k != "sweep"}
    given = {k: v for k, v in table.items() if k in Options.model_fields}
    clean, problems = check_options(schema(Options), given, "sweep", "sweep")
    problems = [f"{p} Example: seeds = 3, or seeds = [0, 7]." if p.startswith("sweep.seeds:") else p for p in problems]
    axes: dict[str, list[Any]] = {}
    for path, values in _flat({k: v for k, v in table.items() if k not in given}):
        problems += _wrong(path, values, base) or ([_twice(path)] if path in axes else [])
        axes[path] = values
    problems += _seeds_twice(axes, given) + ([] if problems else _hidden(axes))
    if problems:
        raise ConfigError(problems)
    options = Options(**clean)
    if options.seeds is not None:
        axes["seed"] = _seeds(options.seeds, base)
    if not axes:
        raise ConfigError(
            "sweep: has no axis, so there is one cell: use atoll run. Example of an axis: seeds = 3, "
            'or "algorithm.lr" = [0.05, 0.1].'
        )
    return base, SweepTable(axes, options.stack, options.resources)


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted paths and their values: `"algorithm.mu" = [...]` and `algorithm.mu = [...]` are the same axis."""
    for key, value in table.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}.")
        else:
            yield path, value


def _wrong(path: str, values: Any, base: Mapping[str, Any]) -> list[str]:
    at, keys, known = f"sweep.{path}", path.split("."), schema(Experiment)
    if not all(key and key == key.strip() for key in keys):
        return [f'{at}: must be a path of keys with points between. Example: "algorithm.mu" = [0.001, 0.01]']
    if keys[0] not in known:
        return [_unknown(at, keys[0], known, base)]
    table = known[keys[0]].table
    if table and len(keys) > 1 and keys[1] not in table:
        return [unknown_option(at, keys[1], keys[0], table)]
    if not isinstance(values, list | tuple):
        instead = "For several seeds write seeds = 3." if path == "seed" else "For all cells put it outside of [sweep]."
        return [f"{at}: must be a list of values (got {short_toml(values)}). Write [{short_toml(values)}]. {instead}"]
    if not values:
        return [f"{at}: is an empty list, which leaves no cell. Give it a value, or leave the axis out."]
    return []


def _unknown(at: str, key: str, known: Mapping[str, Argument], base: Mapping[str, Any]) -> str:
    """No key of an experiment; perhaps one of a table in it, without the table's name."""
    owners = [name for name, argument in known.items() if key in _options(argument, base.get(name))]
    if owners and at == f"sweep.{key}":
        return f'{at}: is not an option of an experiment. Did you mean "{owners[0]}.{key}"?'
    return unknown_option(at, key, "an experiment", [*known, *Options.model_fields])


def _options(argument: Argument, entry: Any) -> Mapping[str, Argument]:
    """What a table of the file may hold."""
    if argument.table:
        return argument.table
    name = entry.get("name") if isinstance(entry, Mapping) else entry
    if not argument.kind or argument.many or not isinstance(name, str):
        return {}
    try:
        return schema(find_builder(CATALOGUE[argument.kind], name, ""), GIVEN.get(argument.kind, ()))
    except ConfigError:
        return {}


def _twice(path: str) -> str:
    return f"sweep.{path}: is there twice, with and without quotes. Put its values into one list."


def _seeds_twice(axes: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    if "seed" in axes and "seeds" in given:
        return ["sweep.seed: is an axis, and seeds is given as well. Keep one: seeds = 3, or seeds = [0, 7]."]
    return []


def _hidden(axes: Mapping[str, list[Any]]) -> list[str]:
    """A value inside of a table that another axis sets as well, so that it would never be used."""
    problems = []
    for outer, values in axes.items():
        for inner in (path for path in axes if path.startswith(f"{outer}.")):
            rest = inner.removeprefix(f"{outer}.").split(".")
            for number, value in enumerate(values, start=1):
                if _holds(value, rest):
                    what = f"value {number} sets {'.'.join(rest)}, and so does the axis {inner}"
                    problems.append(f"sweep.{outer}: {what}. Keep one of them.")
    return problems


def _holds(value: Any, keys: list[str]) -> bool:
    if isinstance(value, str):
        value = {"name": value}
    if isinstance(value, list) and keys[0].isdecimal() and int(keys[0]) < len(value):
        inside = value[int(keys[0])]
    elif isinstance(value, Mapping) and keys[0] in value:
        inside = value[keys[0]]
    else:
        return False
    return len(keys) == 1 or _holds(inside, keys[1:])


def _seeds(seeds: int | list[int], base: Mapping[str, Any]) -> list[Any]:
    if isinstance(seeds, list):
        return list(seeds)
    first = base.get("seed", 0)
    plain = isinstance(first, int) and not isinstance(first, bool)
    return [first + i for i in range(seeds)] if plain else [first]  # what is no number is refused with the cells
