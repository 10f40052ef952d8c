"""A configuration as flat settings: which differ, how they are shown, and back to TOML to read."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Settings = Mapping[str, Any]
_FROM_PYTHON = "atoll.runs.python_inputs:"
# Of tables that a file may leave out: without the table these hold as well, so a name need not say them.
DEFAULTS: Settings = {
    "privacy.accountant": "auto",
    "privacy.canaries": 0,
    "privacy.simulate.sampling": "poisson",
    "local.privacy.sampling": "shuffled",
    "stop.threshold": 0.0,
}


def flatten(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted settings, without seed and leading metric; a list of tables becomes its names and then each table.

    >>> clip = {"name": "clip_l2", "max_norm": 1.0}
    >>> flatten({"seed": 3, "algorithm": {"name": "fedprox", "mu": 0.1}, "transform": [clip]})
    {'algorithm.name': 'fedprox', 'algorithm.mu': 0.1, 'transform': 'clip_l2', 'transform.clip_l2.max_norm': 1.0}
    """
    flat: dict[str, Any] = {}
    for key, value in experiment.items():
        if key not in ("seed", "metric"):
            _put(flat, key, value)
    return flat


def _put(flat: dict[str, Any], key: str, value: Any) -> None:
    if isinstance(value, Mapping):
        value = _plainly_named(value)
        for name, inner in value.items():
            _put(flat, f"{key}.{name}", inner)
    elif _tables(value):
        names = _unique([str(table.get("name", number)) for number, table in enumerate(value, start=1)])
        flat[key] = " > ".join(names)
        for name, table in zip(names, value, strict=True):
            _put(flat, f"{key}.{name}", {inner: table[inner] for inner in table if inner != "name"})
    else:
        flat[key] = value


def _plainly_named(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """What Python handed over goes by its class, or by what it is: "Net", "arrays".

    >>> _plainly_named({"name": "atoll.runs.python_inputs:module", "kind": "Net", "parameters": 10})
    {'name': 'Net', 'parameters': 10}
    """
    name = str(entry.get("name", ""))
    if not name.startswith(_FROM_PYTHON):
        return entry
    named = str(entry.get("kind", name.removeprefix(_FROM_PYTHON)))
    return {"name": named, **{key: value for key, value in entry.items() if key not in ("name", "kind")}}


def is_fingerprint(key: str) -> bool:
    """Does this setting tell things apart without saying how? Names leave it out."""
    return key.rpartition(".")[2] in ("digest", "layout")


def _tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _unique(names: Sequence[str]) -> list[str]:
    return [name if (n := names[:i].count(name)) == 0 else f"{name}#{n + 1}" for i, name in enumerate(names)]


def differing(all_settings: Sequence[Settings]) -> list[str]:
    """The settings that are not the same everywhere, in the order of the file."""
    keys = dict.fromkeys(key for settings in all_settings for key in settings)
    return [key for key in keys if len({_value(settings, key) for settings in all_settings}) > 1]


def unusual(settings: Settings) -> dict[str, Any]:
    """The settings without the defaults of tables that may be left out.

    >>> unusual({"rounds": 5, "privacy.accountant": "auto", "privacy.delta": 1e-3})
    {'rounds': 5, 'privacy.delta': 0.001}
    """
    return {key: value for key, value in settings.items() if key not in DEFAULTS or DEFAULTS[key] != value}


def telling(all_settings: Sequence[Settings]) -> list[str]:
    """The differing settings that a name needs: those that differ between settings of the same kind.

    `algorithm.mu` exists only where `algorithm.name` is fedprox; that it is missing elsewhere tells nothing.
    """
    keys = differing(all_settings)
    return [key for key in keys if _differs_within_kind(all_settings, key)]


def _differs_within_kind(all_settings: Sequence[Settings], key: str) -> bool:
    kinds: dict[tuple[str, ...], set[str]] = {}
    for settings in all_settings:
        kinds.setdefault(_kind(settings, key), set()).add(_value(settings, key))
    return any(len(values) > 1 for values in kinds.values())


def _kind(settings: Settings, key: str) -> tuple[str, ...]:
    """The names of the tables a setting stands in."""
    parts = key.split(".")
    above = [".".join(parts[:depth]) for depth in range(1, len(parts))]
    named = [f"{table}.name" if f"{table}.name" in settings else table for table in above]
    return tuple(_value(settings, name) for name in named if name != key)


def _value(settings: Settings, key: str) -> str:
    return json.dumps(settings[key], sort_keys=True, default=str) if key in settings else ""


def short(keys: Sequence[str]) -> dict[str, str]:
    """The shortest clear word for each setting: `algorithm.mu` is mu, `partition.name` is partition."""
    words = {key: key.removesuffix(".name").rpartition(".")[2] for key in keys}
    taken = list(words.values())
    return {key: word if taken.count(word) == 1 else key for key, word in words.items()}


def show(value: Any) -> str:
    """A setting as a person writes it."""
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(show(item) for item in value)
    return str(value)


def toml(experiment: Mapping[str, Any]) -> str:
    """The configuration as TOML to read; a setting that is not set is left out."""
    return "\n".join(_section(experiment, "")).strip() + "\n"


def _section(table: Mapping[str, Any], path: str) -> list[str]:
    lines = [
        f"{key} = {_literal(value)}"
        for key, value in table.items()
        if value is not None and not isinstance(value, Mapping) and not _tables(value)
    ]
    for key, value in table.items():
        inner = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            lines += ["", f"[{inner}]", *_section(value, inner)]
        elif _tables(value):
            lines += [line for item in value for line in ("", f"[[{inner}]]", *_section(item, inner))]
    return lines


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_literal(item)}" for key, item in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False, default=str)
