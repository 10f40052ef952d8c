"""Writing TOML: the part of it that an experiment needs. Reading is tomllib's."""

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dumps(data: Mapping[str, Any]) -> str:
    """A document: plain values first, then a [table] or [[table]] for each nested one; deeper ones inline.

    >>> print(dumps({"rounds": 5, "local": {"batch": 32}}), end="")
    rounds = 5
    <BLANKLINE>
    [local]
    batch = 32
    """
    tables = {k: v for k, v in data.items() if isinstance(v, Mapping) or _tables(v)}
    blocks = [_lines({k: v for k, v in data.items() if k not in tables})]
    for name, value in tables.items():
        if isinstance(value, Mapping):
            blocks.append(f"[{_key(name)}]\n{_lines(value)}")
        else:
            blocks += [f"[[{_key(name)}]]\n{_lines(table)}" for table in value]
    return "\n".join(block for block in blocks if block)


def inline(value: Any) -> str:
    """One value on one line.

    >>> inline({"name": "sgd", "momentum": 0.9, "nesterov": True})
    '{ name = "sgd", momentum = 0.9, nesterov = true }'
    """
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_key(str(k))} = {inline(v)}" for k, v in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(inline, value))}]"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, int | float) else str(value)


def _lines(table: Mapping[str, Any]) -> str:
    return "".join(f"{_key(k)} = {inline(v)}\n" for k, v in table.items())


def _tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(x, Mapping) for x in value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(value: str) -> str:
    # JSON's escapes are TOML's, but JSON leaves DEL as it is
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
