"""Names in a file become calls to plain builders; the builder's signature is the schema.

>>> from atoll.transforms import TRANSFORMS
>>> check(TRANSFORMS, {"name": "clip_l2", "max_norm": 1}, "transform.0")
({'name': 'clip_l2', 'max_norm': 1.0}, [])
>>> check(TRANSFORMS, {"name": "clip_l2", "max_norm": 0}, "transform.0")[1]
['transform.0.max_norm: must be above 0 (got 0).']
"""

import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pydantic import BaseModel

from atoll.errors import ConfigError
from atoll.experiment.arguments import Argument, schema
from atoll.experiment.catalogue import CATALOGUE, GIVEN, Registry
from atoll.experiment.messages import EXAMPLES, closest_name, intended, missing, mistakes, unknown_name, unknown_option
from atoll.experiment.type_names import short_toml
from atoll.schedules import Schedule

Entry = dict[str, Any]  # {"name": ..., and its options}
Nested = Mapping[str, Callable[[Entry, str], Any]]  # of a kind in the catalogue: from an entry and where it stands
_CHAIN = '["equal_weights", { name = "clip_l2", max_norm = 1.0 }]'


def check(registry: Registry, entry: Any, where: str, given: Collection[str] = ()) -> tuple[Entry, list[str]]:
    """The entry with every default filled in, and everything that is wrong with it."""
    options = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(options, Mapping):
        first = EXAMPLES.get(where, {"name": next(iter(registry))})["name"]
        return {}, [
            f'{where}: must be a name or a table with a name (got {short_toml(entry)}). Example: name = "{first}"'
        ]
    name = options.get("name")
    try:
        arguments = _arguments(registry, name, f"{where}.name", given)
    except ConfigError as e:
        return dict(options), e.problems
    clean, problems = check_options(arguments, {k: v for k, v in options.items() if k != "name"}, where, str(name))
    return {"name": name, **clean}, problems


def build(registry: Registry, entry: Any, *, where: str, nested: Nested | None = None, **given: Any) -> Any:
    """Call the builder that the entry names with its options; `given` comes from the program.

    `nested` builds the entries among its options, by their kind, where more is needed than they say.
    """
    clean, problems = check(registry, entry, where, given)
    if problems:
        raise ConfigError(problems)
    builder = find_builder(registry, clean["name"], f"{where}.name")
    arguments, wanted = schema(builder, given), inspect.signature(builder).parameters
    options = {k: _make(arguments[k], v, f"{where}.{k}", nested or {}) for k, v in clean.items() if k != "name"}
    return builder(**{k: v for k, v in given.items() if k in wanted}, **options)


def find_builder(registry: Registry, name: Any, at: str) -> Callable[..., Any]:
    """The builder of that name, or the one at an import path such as "my_lab.algorithms:Mine"."""
    if name is None:
        raise ConfigError(f'{at}: is missing. Example: name = "{next(iter(registry))}". Known: {", ".join(registry)}.')
    if not isinstance(name, str):
        raise ConfigError(f"{at}: must be text (got {short_toml(name)}). Known: {', '.join(registry)}.")
    if name in registry:
        return registry[name]
    if ":" in name:
        return _imported(name, at)
    raise ConfigError(unknown_name(at, name, registry))


def _arguments(registry: Registry, name: Any, at: str, given: Collection[str]) -> dict[str, Argument]:
    builder = find_builder(registry, name, at)
    try:
        return schema(builder, given)
    except ConfigError as e:
        raise ConfigError(f"{at}: {e}") from e


def check_options(
    arguments: Mapping[str, Argument], options: Mapping[str, Any], where: str, owner: str
) -> tuple[Entry, list[str]]:
    """The options with every default filled in (what is None is left out), and everything that is wrong with them."""
    unknown = [k for k in options if k not in arguments]
    problems = [unknown_option(_at(where, k), k, owner, arguments) for k in unknown]
    meant = {intended(k, owner, arguments) for k in unknown}  # a misspelt option is not missing as well
    clean: Entry = {}
    for name, argument in arguments.items():
        value = options.get(name)
        if value is None and argument.required:
            problems += [] if name in meant else [missing(_at(where, name), owner, argument)]
            continue
        if value is None and name in options and argument.default is not None:
            problems.append(f"{_at(where, name)}: must not be empty. Leave it out for the default.")
            continue
        filled, wrong = _check_one(argument, value, _at(where, name))
        problems += wrong
        if filled is not None:
            clean[name] = filled
    return clean, problems


def _check_one(argument: Argument, value: Any, at: str) -> tuple[Any, list[str]]:
    written = value is not None
    value = value if written else argument.default
    if value is None:
        return None, []
    if argument.kind:
        return _check_entries(argument, argument.kind, value, at)
    if argument.table:
        return _check_table(argument.table, value, at)
    if argument.scheduled and (isinstance(value, Mapping) or _names_schedule(value)):
        return _check_schedule(argument, value, at)
    problems = mistakes(argument, value, at)
    if problems:
        return None, problems if written else []
    return argument.clean(value), []


def _check_entries(argument: Argument, kind: str, value: Any, at: str) -> tuple[Any, list[str]]:
    registry, given = CATALOGUE[kind], GIVEN.get(kind, ())
    if not argument.many:
        entry = value if value is not argument.default else as_entry(registry, value)
        return check(registry, entry, at, given) if entry is not None else (None, [])
    if not isinstance(value, list | tuple):
        example = f'["{next(iter(registry))}"]' if kind != "transforms" else _CHAIN
        return None, [f"{at}: must be a list (got {short_toml(value)}). Write {at} = {example}."]
    checked = [check(registry, entry, f"{at}.{i}", given) for i, entry in enumerate(value)]
    return [entry for entry, _ in checked], [p for _, problems in checked for p in problems]


def _check_table(table: type[BaseModel], value: Any, at: str) -> tuple[Any, list[str]]:
    options = value.model_dump() if isinstance(value, BaseModel) else value
    if not isinstance(options, Mapping):
        return None, [f"{at}: must be a table (got {short_toml(value)}). Write [{at}] and its options below that."]
    return check_options(schema(table), options, at, at)


def _check_schedule(argument: Argument, value: Any, at: str) -> tuple[Any, list[str]]:
    """A schedule in place of a number: where it starts must be a number that the setting allows."""
    clean, problems = check(CATALOGUE["schedules"], value, at)
    if not problems and "start" in clean:
        problems = mistakes(argument, clean["start"], f"{at}.start")
    return clean, problems


def _names_schedule(value: Any) -> bool:
    return isinstance(value, str) and value in CATALOGUE["schedules"]


def _make(argument: Argument, value: Any, at: str, nested: Nested) -> Any:
    """A clean value as the builder takes it."""
    if argument.kind:
        make = nested.get(argument.kind) or _plainly(argument.kind)
        return [make(x, f"{at}.{i}") for i, x in enumerate(value)] if argument.many else make(value, at)
    if argument.scheduled and isinstance(value, Mapping):
        return _schedule(value, at)
    return argument.read(value)


def _schedule(entry: Mapping[str, Any], at: str) -> Schedule:
    made = build(CATALOGUE["schedules"], entry, where=at)
    if not isinstance(made, Schedule):  # an import path may name anything
        what = f"{entry['name']!r} gives a {type(made).__name__}, which is no schedule"
        raise ConfigError(f"{at}.name: {what}. Derive it from atoll.schedules.Schedule, which says what one needs.")
    return made


def _plainly(kind: str) -> Callable[[Entry, str], Any]:
    return lambda entry, at: build(CATALOGUE[kind], entry, where=at)


def as_entry(registry: Registry, default: Any) -> Any:
    """A default as a file would write it: an object is the entry that builds its equal."""
    if isinstance(default, str | Mapping):
        return default
    for name, builder in registry.items():
        if not any(a.required for a in schema(builder).values()) and builder() == default:
            return name
    return None


def _imported(name: str, at: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as e:
        what = f"cannot import {module!r} ({e})"
        raise ConfigError(f"{at}: {what}. Install it, or put its folder on PYTHONPATH.") from e
    except Exception as e:  # a stranger's module may raise anything
        raise ConfigError(f"{at}: importing {module!r} failed ({type(e).__name__}: {e}). Mend that module.") from e
    builder = getattr(found, attribute, None)
    if builder is None:
        meant = closest_name(attribute, [x for x in vars(found) if not x.startswith("_")])
        guess = f" Did you mean '{module}:{meant}'?" if meant else " Write 'module:Class'."
        raise ConfigError(f"{at}: {module!r} has no {attribute!r}.{guess}")
    if not callable(builder):
        raise ConfigError(f"{at}: {name!r} is a {type(builder).__name__}. Name a class or a function.")
    return builder  # type: ignore[no-any-return]


def _at(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
