"""What signatures say, kept in the user's cache folder until a file of the package changes.

To read them all that they name must be imported, torch first of all: lists and mistakes in a file need not wait for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from atoll.cli.common import imports

if TYPE_CHECKING:
    from atoll.experiment import Experiment

Part = Literal["catalogue", "suites"]
_PACKAGE = Path(__file__).parents[1]


def load(file: str | Path, overrides: Sequence[str]) -> Experiment:
    """The experiment of a file, with changes such as "algorithm.lr=0.05"."""
    from atoll.schema import override, read

    return parse(override(read(file), overrides))


def parse(raw: Mapping[str, Any]) -> Experiment:
    """The experiment; if it has mistakes and signatures are kept, they are said before torch is imported."""
    known = kept("catalogue")
    if known is not None:
        from atoll.schema import check_remembered

        check_remembered(known["signatures"], raw)
    with imports():
        from atoll.experiment import Experiment
    if known is None:
        remembered("catalogue")
    return Experiment.parse(raw)


def remembered(part: Part) -> Any:
    """What was kept; else it is read, and kept."""
    found = kept(part)
    if found is None:
        found = _read_catalogue() if part == "catalogue" else _read_suites()
        _keep({**_content(), "state": _package_state(), part: found})
    return found


def kept(part: Part) -> Any:
    """None where it has not been read since a file of the package changed."""
    return _content().get(part)


def _read_catalogue() -> dict[str, Any]:
    with imports():
        from atoll.experiment import CATALOGUE, describe, plain_signatures

    lists = {kind: [(i.name, i.meaning, i.lines()) for i in describe(kind)] for kind in CATALOGUE}
    return {"signatures": plain_signatures(), "lists": lists}


def _read_suites() -> list[tuple[str, str, list[str]]]:
    with imports():
        from atoll.suites import describe_suites

    return describe_suites()


def _content() -> dict[str, Any]:
    try:
        content = dict(json.loads(_path().read_text()))
        return content if content["state"] == _package_state() else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _path() -> Path:
    """A file for each copy of the package: two of them would forget for each other."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "atoll"
    return folder / f"signatures-{hashlib.sha256(str(_PACKAGE).encode()).hexdigest()[:8]}.json"


def _package_state() -> str:
    """Another one as soon as a file of the package is another one."""
    files = [path for path in _PACKAGE.rglob("*") if path.suffix in (".py", ".toml")]
    seen = sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files)
    return hashlib.sha256(repr((sys.version, seen)).encode()).hexdigest()


def _keep(content: dict[str, Any]) -> None:
    """If it can be: where a home cannot be written, it is read from signatures again."""
    path = _path()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(content))
        draft.replace(path)
