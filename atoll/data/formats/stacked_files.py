"""The columns of one file, or of several one below the other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from atoll.data.formats import safe_read
from atoll.data.formats.client_files import Found
from atoll.data.formats.column_file import ColumnFile, Columns
from atoll.errors import DataError

FILE = "file"  # the column that says which file a row is from, where each is a client


@dataclass(frozen=True)
class StackedFiles:
    """Files with the same columns."""

    name: str
    where: str
    files: tuple[ColumnFile, ...]
    holds: dict[str, str]  # name -> "numbers", "texts", or the name of a type that is neither
    clients: tuple[str, ...] = ()  # whose each file is, where each is a client

    def read(self, numbers: Sequence[str], texts: Sequence[str]) -> Columns:
        inside = [name for name in texts if name != FILE or not self.clients]
        parts = [file.read(numbers, inside) for file in self.files]
        columns = {name: np.concatenate([part[name] for part in parts]) for name in [*numbers, *inside]}
        if len(inside) < len(texts):
            sizes = [len(next(iter(part.values()))) for part in parts]
            columns[FILE] = np.repeat(np.array(self.clients, object), sizes)
        return columns

    def need(self, name: str, option: str) -> str:
        """A name that is a column, or a refusal with the nearest one."""
        if name in self.holds:
            return name
        guess = safe_read.did_you_mean(name, self.holds)
        raise DataError(
            f"data.{option}: {self.name} has no column {name!r}.{guess} "
            f"It has {safe_read.list_names(list(self.holds), 20)}."
        )


def stacked(found: Found, files: Sequence[ColumnFile], by_file: bool, wanted: Collection[str]) -> StackedFiles:
    """The files as one table; `by_file`: each is a client. Each must have the columns that are `wanted`; (): all."""
    union = dict.fromkeys(name for file in files for name in file.holds)
    names = [name for name in union if not wanted or name in wanted]
    _check_alike(files, names)
    holds = {name: _together([file.holds[name] for file in files if name in file.holds]) for name in union}
    clients = found.clients if by_file else ()
    return StackedFiles(found.name, found.where, tuple(files), {**holds, FILE: "texts"} if clients else holds, clients)


def _check_alike(files: Sequence[ColumnFile], names: Sequence[str]) -> None:
    """Refuse files of which some lack a column that others have."""
    lacking = {file.path.name: [n for n in names if n not in file.holds] for file in files}
    problems = [
        f"{name} lacks {safe_read.list_names(columns)}{_guess(columns[0], file)}"
        for file, (name, columns) in zip(files, lacking.items(), strict=True)
        if columns
    ]
    if problems:
        more = f"; {len(problems) - 8} more files lack some" if len(problems) > 8 else ""
        raise DataError(
            f"data.path: the files have not the same columns: {'; '.join(problems[:8])}{more}. "
            "Make them alike, or leave these columns out with exclude, or name those to learn from with features."
        )


def _guess(name: str, file: ColumnFile) -> str:
    guess = safe_read.did_you_mean(name, file.holds)
    return f".{guess}" if guess else ""


def _together(kinds: Sequence[str]) -> str:
    """What a column holds: numbers only if it does in every file."""
    other = next((kind for kind in kinds if kind not in ("numbers", "texts")), None)
    return other or ("texts" if "texts" in kinds else "numbers")
