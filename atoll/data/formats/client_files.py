"""The files that a path names: one file, or one for each client (a folder, a pattern, a list)."""

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from atoll.data.formats import safe_read
from atoll.errors import DataError

Files = Path | tuple[Path, ...]
_PACKED = (".gz", ".bz2", ".xz")


@dataclass(frozen=True)
class Found:
    """The files, what they are called together, and the name of the client that each is; () for a single file."""

    name: str
    where: str  # as the user has it
    paths: tuple[Path, ...]
    clients: tuple[str, ...] = ()


def find_files(path: Files, suffixes: Sequence[str], option: str = "path") -> Found:
    """All files of a folder with one of these suffixes, all that a pattern fits, all of a list; or one file."""
    if isinstance(path, tuple):
        return _several([safe_read.existing_file(p, option) for p in path], option, "the list")
    path = path.expanduser()
    if path.is_dir():
        return _several(_members(path, suffixes, option), option, str(path))
    if not path.exists() and glob.has_magic(str(path)):
        anchor = Path(path.anchor)
        fitting = sorted(anchor.glob(str(path.relative_to(anchor))))
        return _several([p for p in fitting if p.is_file()], option, f"the pattern {str(path)!r}")
    return Found(path.name, str(path), (safe_read.existing_file(path, option),))


def _members(folder: Path, suffixes: Sequence[str], option: str) -> list[Path]:
    endings = tuple(suffix + packed for suffix in suffixes for packed in ("", *_PACKED))
    members = [p for p in sorted(folder.iterdir()) if p.name.lower().endswith(endings) and p.name[0] != "."]
    if not members:
        raise DataError(
            f"data.{option}: {folder} is a folder without a file that ends in {' or '.join(suffixes)}. "
            f"It has {safe_read.contents(folder)}. Name a file, or a folder with one file for each client."
        )
    return members


def _several(paths: Sequence[Path], option: str, where: str) -> Found:
    if not paths:
        raise DataError(f"data.{option}: there is no file in {where}. Name at least one.")
    twice = next((p for i, p in enumerate(paths) if p in paths[:i]), None)
    if twice is not None:
        raise DataError(f"data.{option}: {twice} is listed twice. List every file once.")
    together = Path(os.path.commonpath([p.absolute().parent for p in paths])).name
    return Found(together or "files", where, tuple(paths), _client_names(paths) if len(paths) > 1 else ())


def _client_names(paths: Sequence[Path]) -> tuple[str, ...]:
    """The files' stems; with the folders before them where two have the same.

    >>> _client_names([Path("x/St. Mary.csv.gz"), Path("x/Bern.csv")])
    ('St. Mary', 'Bern')
    >>> _client_names([Path("x/a/data.csv"), Path("x/b/data.csv")])
    ('a/data', 'b/data')
    """
    plain = [p.with_suffix("") if p.suffix in _PACKED else p for p in paths]
    for depth in range(max(len(p.parts) for p in plain)):
        names = ["/".join([*p.parts[:-1][len(p.parts) - 1 - depth :], p.stem]) for p in plain]
        if len(set(names)) == len(names):
            return tuple(names)
    return tuple(map(str, paths))
