"""Experiment files: reading them, and changing them from the command line."""

import copy
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.errors import ConfigError
from atoll.schema.limits import nested_too_deep, shallow
from atoll.schema.messages import closest_name
from atoll.schema.type_names import short_toml

# What is usually meant by a line that cannot be read, most telling first.
_SLIPS = [
    (r"=\s*[-+]?\d+,\d+\s*$", "Write decimals with a point: 0.1, not 0,1."),
    (r"=\s*[-+]?\.\d", "Write a zero before the point: 0.1, not .1."),
    (r"=\s*[-+]?\d+\.(?!\d)", "Write a digit after the point: 1.0, not 1."),
    (r"=\s*(True|False)\b", "Write true and false in lower case."),
    (r"=\s*(None|null|nil)\b", "TOML has no empty value: leave the line out."),
    (r"=\s*$", "A value is missing after the =."),
    (r"^[^=\"']*:\s", "TOML writes key = value, with = and not with a colon."),
    (r"^\s*\[\[?[^\]]*$", "A [ is not closed."),
    (r"=\s*[A-Za-z_]", 'Text needs quotes: name = "fedavg".'),
]
_COMPLAINTS = [
    ("overwrite", "This key is there twice: keep one."),
    ("twice", "This table is there twice: put its lines together."),
    ("string", "A quote is not closed."),
    ("Illegal character '\\n'", "A quote is not closed."),
    ("Unclosed", "A bracket is not closed."),
]
_USUAL = "A line is key = value, or [table]; text stands in quotes."


def read(path: str | Path) -> dict[str, Any]:
    """A TOML file as it stands, or a ConfigError that shows the line."""
    text = _text(Path(path))
    try:
        return shallow(tomllib.loads(text), str(path))
    except RecursionError:
        raise ConfigError(nested_too_deep(str(path))) from None
    except tomllib.TOMLDecodeError as e:
        raise ConfigError(_syntax(str(path), text, str(e))) from None


def override(raw: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """A copy with these changes: "path=value", the value in TOML or else plain text; numbers count into lists from 0.

    >>> override({"algorithm": "fedavg"}, ["algorithm.lr=0.05", "engine.name=loop"])
    {'algorithm': {'name': 'fedavg', 'lr': 0.05}, 'engine': {'name': 'loop'}}
    """
    changed = copy.deepcopy(dict(raw))
    for assignment in assignments:
        path, is_there, value = assignment.partition("=")
        keys = [key.strip() for key in path.split(".")]
        if not is_there or not all(keys):
            raise ConfigError(f"--set {assignment}: must be path=value. Example: --set algorithm.lr=0.05")
        set_at_path(changed, keys, _value(value.strip(), f"--set {path.strip()}"), f"--set {assignment}")
    return changed


def set_at_path(inside: Any, keys: Sequence[str], value: Any, said: str) -> None:
    """Change the value at a path, in place; `said` is how a refusal begins."""
    for i, key in enumerate(keys):
        place, last = ".".join(keys[: i + 1]), i == len(keys) - 1
        if isinstance(inside, list):
            step: Any = _index(inside, key, place, said)
        elif isinstance(inside, dict):
            step = key
        else:
            what = f"{'.'.join(keys[:i])} is {short_toml(inside)}, not a table"
            raise ConfigError(f"{said}: {what}. Set {'.'.join(keys[:i])} itself.")
        if last:
            inside[step] = value
            return
        inside = _enter(inside, step, keys[i + 1])


def _enter(inside: Any, step: Any, following: str) -> Any:
    """What is at this step, made if nothing is there; a bare name becomes the table that it stands for."""
    there = inside[step] if isinstance(inside, list) else inside.get(step)
    if isinstance(there, str):
        there = {"name": there}
    elif there is None:
        there = [] if following.isdecimal() else {}
    inside[step] = there
    return there


def _index(items: list[Any], key: str, place: str, said: str) -> int:
    """A place in a list; the one after the last adds an item."""
    if not key.isdecimal():
        raise ConfigError(f"{said}: {place} is in a list. Count from 0: {_counted(place)}.")
    if int(key) > len(items):
        what = f"there is no {place}, the list has {len(items)} items"
        raise ConfigError(f"{said}: {what}. Use {_counted(place, len(items))} to add one.")
    if int(key) == len(items):
        items.append(None)
    return int(key)


def _counted(place: str, number: int = 0) -> str:
    return f"{place.rpartition('.')[0]}.{number}"


def _value(text: str, said: str) -> Any:
    """The value in TOML; plain text where it is none, unless it begins as a list or a table does."""
    head = "value = "
    try:
        parsed = shallow(tomllib.loads(head + text), said)
    except RecursionError:
        raise ConfigError(nested_too_deep(said)) from None
    except tomllib.TOMLDecodeError as e:
        if not text.startswith(("[", "{")):
            return text
        found = re.search(r"column (\d+)", str(e))
        column = min(int(found[1]) - 1 - len(head), len(text)) if found else len(text)
        what = str(e).partition(" (at ")[0]
        raise ConfigError(
            f"{said}: {what}.\n    {text}\n    {' ' * column}^\nNames need quotes, and no comma stands before a }}. "
            'Example: --set \'transform=["equal_weights", { name = "clip_l2", max_norm = 1.0 }]\''
        ) from None
    return parsed["value"] if set(parsed) == {"value"} else text


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file.{_beside(path)}") from None
    except IsADirectoryError:
        inside = sorted(p.name for p in path.glob("*.toml"))
        have = f"It has {', '.join(inside[:5])}." if inside else "It has no .toml files."
        raise ConfigError(f"{path}: is a folder. Give a file. {have}") from None
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {e.start}). Save it as UTF-8.") from None
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read ({e.strerror}). Look at its permissions.") from None


def _beside(path: Path) -> str:
    """A file of nearly that name in the same folder."""
    if not path.parent.is_dir():
        return f" There is no folder {path.parent} either."
    files = [p.name for p in path.parent.iterdir() if p.is_file()]
    meant = closest_name(path.name, files)
    return f" Did you mean {path.with_name(meant)}?" if meant else ""


def _syntax(path: str, text: str, complaint: str) -> str:
    """Where the file cannot be read, the line itself, and what is usually meant."""
    lines = text.splitlines() or [""]
    found = re.search(r"line (\d+), column (\d+)", complaint)
    row, column = (int(found[1]), int(found[2])) if found else (len(lines), len(lines[-1]) + 1)
    line = lines[min(row, len(lines)) - 1]
    what = complaint.partition(" (at ")[0]
    caret = " " * (column - 1) + "^"
    return f"{path}, line {row}, column {column}: {what}.\n    {line}\n    {caret}\n{_plain_hint(line, complaint)}"


def _plain_hint(line: str, complaint: str) -> str:
    for words, hint in _COMPLAINTS:
        if words in complaint:
            return hint
    return next((hint for pattern, hint in _SLIPS if re.search(pattern, line)), _USUAL)
