"""Entries and tables of a file against what signatures say: everything that is wrong at once."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel

from atoll.errors import ConfigError
from atoll.schema.argument import Argument
from atoll.schema.limits import shallow
from atoll.schema.messages import EXAMPLES, intended, missing, mistakes, unknown_name, unknown_option
from atoll.schema.type_names import short_toml

Entry = dict[str, Any]  # {"name": ..., and its options}
_CHAIN = '["equal_weights", { name = "clip_l2", max_norm = 1.0 }]'


class Kind(Protocol):
    """What a file may name in one place: algorithms, say."""

    @property
    def names(self) -> Collection[str]:
        """In the order in which they are listed."""
        ...

    def arguments(self, name: str, at: str) -> Mapping[str, Argument]:
        """Those of one of the names, or of code at an import path; a ConfigError where there is none."""
        ...


@dataclass(frozen=True)
class Checks:
    """Checks with these kinds for the entries that stand in entries and tables."""

    kinds: Mapping[str, Kind]

    def experiment(self, arguments: Mapping[str, Argument], raw: Mapping[str, Any]) -> Entry:
        """A whole file with every default filled in, or one ConfigError with everything that is wrong."""
        clean, problems = self.options(arguments, raw, "", "an experiment")
        problems = problems or _never_ends(clean.get("stop"))
        if problems:
            raise ConfigError(problems)
        return clean

    def entry(self, kind: Kind, entry: Any, where: str) -> tuple[Entry, list[str]]:
        """The entry with every default filled in, and everything that is wrong with it."""
        options = {"name": entry} if isinstance(entry, str) else entry
        if not isinstance(options, Mapping):
            first = EXAMPLES.get(where, {"name": next(iter(kind.names))})["name"]
            return {}, [
                f'{where}: must be a name or a table with a name (got {short_toml(entry)}). Example: name = "{first}"'
            ]
        name = options.get("name")
        try:
            arguments = kind.arguments(known_name(kind.names, name, f"{where}.name"), f"{where}.name")
        except ConfigError as e:
            return dict(options), e.problems
        clean, problems = self.options(arguments, {k: v for k, v in options.items() if k != "name"}, where, str(name))
        return {"name": name, **clean}, problems

    def options(
        self, arguments: Mapping[str, Argument], options: Mapping[str, Any], where: str, owner: str
    ) -> tuple[Entry, list[str]]:
        """With every default filled in (what is None is left out), and everything that is wrong with them."""
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
            filled, wrong = self._one(argument, value, _at(where, name))
            problems += wrong
            if filled is not None:
                clean[name] = filled
        return clean, problems

    def _one(self, argument: Argument, value: Any, at: str) -> tuple[Any, list[str]]:
        written = value is not None
        value = value if written else argument.default
        if value is None:
            return None, []
        if argument.kind:
            return (
                self._lists(argument.kind, value, at)
                if argument.lists
                else self._entries(argument.kind, argument.many, value, at)
            )
        if argument.table is not None:
            return self._table(argument.table, value, at)
        if argument.scheduled and (isinstance(value, Mapping) or self._names_schedule(value)):
            return self._schedule(argument, value, at)
        problems = mistakes(argument, value, at)
        if problems:
            return None, problems if written else []
        return argument.clean(value), []

    def _entries(self, name: str, many: bool, value: Any, at: str) -> tuple[Any, list[str]]:
        kind = self.kinds[name]
        if not many:
            return self.entry(kind, value, at)
        if not isinstance(value, list | tuple):
            example = f'["{next(iter(kind.names))}"]' if name != "transforms" else _CHAIN
            return None, [f"{at}: must be a list (got {short_toml(value)}). Write {at} = {example}."]
        checked = [self.entry(kind, entry, f"{at}.{i}") for i, entry in enumerate(value)]
        return [entry for entry, _ in checked], [p for _, problems in checked for p in problems]

    def _lists(self, name: str, value: Any, at: str) -> tuple[Any, list[str]]:
        """A list of lists of entries."""
        first = f'["{next(iter(self.kinds[name].names))}"]' if name != "transforms" else _CHAIN
        odd = (
            value
            if not isinstance(value, list | tuple)
            else next((x for x in value if isinstance(x, str | Mapping)), None)
        )
        if odd is not None:
            return None, [f"{at}: must be a list of lists (got {short_toml(odd)}). Write {at} = [{first}, []]."]
        checked = [self._entries(name, True, entries, f"{at}.{i}") for i, entries in enumerate(value)]
        return [entries for entries, _ in checked], [p for _, problems in checked for p in problems]

    def _table(self, table: Mapping[str, Argument], value: Any, at: str) -> tuple[Any, list[str]]:
        options = value.model_dump() if isinstance(value, BaseModel) else value
        if not isinstance(options, Mapping):
            return None, [f"{at}: must be a table (got {short_toml(value)}). Write [{at}] and its options below that."]
        return self.options(table, options, at, at)

    def _schedule(self, argument: Argument, value: Any, at: str) -> tuple[Any, list[str]]:
        """A schedule in place of a number: where it starts must be a number that the setting allows."""
        clean, problems = self.entry(self.kinds["schedules"], value, at)
        if not problems and "start" in clean:
            problems = mistakes(argument, clean["start"], f"{at}.start")
        return clean, problems

    def _names_schedule(self, value: Any) -> bool:
        return isinstance(value, str) and value in self.kinds["schedules"].names


def one_experiment(raw: Any) -> dict[str, Any]:
    """A file's content, if it could be that of an experiment."""
    if not isinstance(raw, Mapping):
        raise ConfigError(f"experiment: must be a table (got {short_toml(raw)}). Start with rounds = 50.")
    if "sweep" in raw:
        raise ConfigError("sweep: this file has a [sweep] table: use atoll sweep (atoll.sweep.run from Python).")
    return {str(k): v for k, v in shallow(raw, "experiment").items()}


def known_name(names: Collection[str], name: Any, at: str) -> str:
    """The name, if it is one of these or an import path such as "my_lab.algorithms:Mine"."""
    if name is None:
        first = next(iter(names))
        raise ConfigError(f'{at}: is missing. Example: name = "{first}". Known: {", ".join(names)}.')
    if not isinstance(name, str):
        raise ConfigError(f"{at}: must be text (got {short_toml(name)}). Known: {', '.join(names)}.")
    if name not in names and ":" not in name:
        raise ConfigError(unknown_name(at, name, names))
    return name


def _never_ends(stop: Mapping[str, Any] | None) -> list[str]:
    if stop is None or any(stop.get(key) is not None for key in ("patience", "target")):
        return []
    return ["stop: does not say when to end. Give patience = 10 (evaluations without an improvement), or a target."]


def _at(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
