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
from dataclasses import dataclass
from typing import Any

from atoll.errors import ConfigError
from atoll.experiment.catalogue import CATALOGUE, GIVEN, Registry
from atoll.experiment.signatures import schema
from atoll.schedules import Schedule
from atoll.schema import Argument, Checks, Entry, closest_name, known_name

Nested = Mapping[str, Callable[[Entry, str], Any]]  # of a kind in the catalogue: from an entry and where it stands


@dataclass(frozen=True)
class Builders:
    """A dict of builders as what a file may name; `given` comes from the program."""

    registry: Registry
    given: Collection[str] = ()

    @property
    def names(self) -> Collection[str]:
        return self.registry.keys()

    def arguments(self, name: str, at: str) -> dict[str, Argument]:
        builder = find_builder(self.registry, name, at)
        try:
            return schema(builder, self.given)
        except ConfigError as e:
            raise ConfigError(f"{at}: {e}") from e


CHECKS = Checks({kind: Builders(registry, GIVEN.get(kind, ())) for kind, registry in CATALOGUE.items()})
check_options = CHECKS.options


def check(registry: Registry, entry: Any, where: str, given: Collection[str] = ()) -> tuple[Entry, list[str]]:
    """The entry with every default filled in, and everything that is wrong with it."""
    return CHECKS.entry(Builders(registry, given), entry, where)


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
    known = known_name(registry, name, at)
    return registry[known] if known in registry else _imported(known, at)


def _make(argument: Argument, value: Any, at: str, nested: Nested) -> Any:
    """A clean value as the builder takes it."""
    if argument.kind:
        make = nested.get(argument.kind) or _plainly(argument.kind)
        if argument.lists:
            return [[make(x, f"{at}.{i}.{j}") for j, x in enumerate(xs)] for i, xs in enumerate(value)]
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


def _imported(name: str, at: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as e:
        what = f"cannot import {module!r} ({e})"
        raise ConfigError(
            f"{at}: {what}. Install it, work in the folder that it lies in, or name that in PYTHONPATH."
        ) from e
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
