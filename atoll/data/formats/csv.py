"""CSV files.

DuckDB parses them, but is told exactly how they are written: left to guess, it skips lines that do not fit its guess.
"""

import io
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from csv import Error, reader
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any, Literal

from pydantic import Field

from atoll.data.dataset import Dataset
from atoll.data.formats import safe_read
from atoll.data.formats.client_files import Files
from atoll.data.formats.column_file import ColumnFile, database_error, first_line, pattern, quoted
from atoll.data.formats.features import is_number
from atoll.data.formats.label_encoding import Kind
from atoll.data.formats.tabular import Missing, Standardise, TablePlan, dataset_from
from atoll.errors import DataError

MISSING_AS = ("NA", "N/A", "NaN", "nan", "null", "NULL")
SUFFIXES = (".csv", ".tsv", ".txt")
_DELIMITERS = ",;\t|"


def csv(
    path: Files,
    label: str,
    client: str | tuple[str, ...] = (),
    test: Files | None = None,
    features: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    categorical: tuple[str, ...] | Literal["auto"] = "auto",
    categories: Annotated[int, Field(ge=2)] = 100,
    kind: Kind | None = None,
    missing: Missing = "refuse",
    missing_as: tuple[str, ...] = MISSING_AS,
    standardise: Standardise = "features",
    test_by: str | None = None,
    test_value: str | int | bool = "test",
    test_share: Annotated[float, Field(ge=0, lt=1)] | None = None,
    seed: int = 0,
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None,
    header: bool = True,
    names: tuple[str, ...] = (),
    encoding: str = "utf-8",
    decimal: Literal[".", ","] | None = None,
) -> Dataset:
    """Your own CSV files: a `label` column, features, and clients by a `client` column or one in each file.

    `path` is a file, or a folder, a pattern ("sites/*.csv") or a list: then each file is a client with the name of the
    file, unless `client` names a column. All files need the same columns.
    `features` are all other columns unless named; `exclude` leaves some out, as are columns without a name. Columns
    of text (or those in `categorical`) become one-hot with the categories of the training rows, at most `categories`
    each; others in test rows are all zeros. `missing` values (empty, or in `missing_as`) are refused, filled with the
    "mean", "median" or "zero" of the training rows (rows without a label are then left out), or their rows dropped
    ("drop"). Numbers have a `decimal` point or comma. Features ("all": targets too) are standardised with training
    statistics. Test rows: the file `test`, those with `test_value` in the column `test_by`, or `test_share` (0.2) of
    the rows of every class; 0 for none. Without `header` columns are called column0, column1, ... or as `names` says.
    """
    clients = (client,) if isinstance(client, str) else client
    test_rows = (test_by, test_value, test_share, seed)
    plan = TablePlan(label, clients, features, exclude, categorical, categories, kind, missing, standardise, *test_rows)
    reading = CsvReading(delimiter, header, names, missing_as, encoding, decimal or ".")
    return dataset_from(partial(csv_table, reading), SUFFIXES, path, test, plan)


@dataclass(frozen=True)
class CsvReading:
    """How the file is written."""

    delimiter: str | None = None  # None: the one that its first line has most of
    header: bool = True
    names: Sequence[str] = ()
    missing_as: Sequence[str] = MISSING_AS
    encoding: str = "utf-8"
    decimal: str = "."

    def number(self, cell: str) -> str:
        """SQL for a cell as a number; NULL if it is none. With a decimal comma a point is part of none."""
        if self.decimal == ".":
            return f"TRY_CAST({cell} AS DOUBLE)"
        return f"CASE WHEN NOT contains({cell}, '.') THEN TRY_CAST(replace({cell}, ',', '.') AS DOUBLE) END"

    def is_number(self, word: str) -> bool:
        return is_number(word.replace(self.decimal, "."))


@contextmanager
def csv_table(reading: CsvReading, base: Any, path: Path) -> Iterator[ColumnFile]:
    """The columns of a CSV file. Cells are trimmed; a column where all that is not missing are numbers is numbers."""
    header, names = reading.header, reading.names
    with _plain_text(path, reading.encoding) as plain:
        first, lines, delimiter = _first_record(plain, path, reading.delimiter)
        called = [n.strip() for n in names or (first if header else [f"column{i}" for i in range(len(first))])]
        _check_names(path, called, first, header and not names)
        columns = ", ".join(f"'k{i}': 'VARCHAR'" for i in range(len(called)))
        source = (
            f"read_csv({pattern(plain)}, auto_detect = false, header = false, skip = {lines if header else 0}, "
            f"delim = {quoted(delimiter)}, quote = '\"', escape = '\"', columns = {{{columns}}})"
        )
        named = {f"k{i}": n for i, n in enumerate(called) if n}
        absent = ", ".join(map(quoted, ["", *reading.missing_as]))
        tests = ", ".join(["count(*)", *(_all_numbers(reading, k, absent) for k in named)])
        try:
            rows, *numbers = base.execute(f"SELECT {tests} FROM {source}").fetchone()
        except database_error() as e:
            _blame(plain, path, delimiter, len(called))
            safe_read.refuse(path, f"cannot be read as CSV ({first_line(e)})", "See to its quotes and line ends")
        if not rows:
            safe_read.refuse(path, "has no rows", "Give at least one below the names of the columns")
        cells = {n: _cell(reading, k, absent) for k, n in named.items()}
        holds = {n: "numbers" if is_number else "texts" for n, is_number in zip(cells, numbers, strict=True)}
        yield ColumnFile(path, source, cells, holds, base)


def _all_numbers(reading: CsvReading, name: str, absent: str) -> str:
    """SQL: is every cell that is not missing a number?"""
    empty = f"{name} IS NULL OR trim({name}) IN ({absent})"
    return f"bool_and(CASE WHEN {reading.number(name)} IS NOT NULL THEN true ELSE {empty} END)"


def _cell(reading: CsvReading, name: str, absent: str) -> tuple[str, str]:
    """SQL for a cell as a number and as text, where nothing is NULL."""
    text = f"CASE WHEN trim({name}) NOT IN ({absent}) THEN trim({name}) END"
    # What cannot be cast is missing, in a column of numbers; only a number that means missing must be looked for.
    looked_for = any(reading.is_number(m) and m.lower() != "nan" for m in reading.missing_as)
    return reading.number(text if looked_for else name), text


@contextmanager
def _plain_text(path: Path, encoding: str) -> Iterator[Path]:
    """The file as plain UTF-8: itself, or a copy for as long as it is needed."""
    unicode = encoding.lower() in ("utf-8", "utf8")
    with path.open("rb") as stream, safe_read.open_unpacked(path) as unpacked:
        as_it_is = unicode and stream.read(6) == unpacked.read(6)
    if as_it_is:
        yield path
        return
    with tempfile.NamedTemporaryFile(suffix=".csv") as copy:
        with safe_read.open_unpacked(path) as unpacked:
            shutil.copyfileobj(unpacked if unicode else _recoded(unpacked, path, encoding), copy)
        copy.flush()
        yield Path(copy.name)


def _recoded(stream: IO[bytes], path: Path, encoding: str) -> IO[bytes]:
    try:
        return io.BytesIO(stream.read().decode(encoding).encode())
    except LookupError:
        raise DataError(f"data.encoding: {encoding!r} is not known. Try 'utf-8', 'latin-1' or 'cp1252'.") from None
    except UnicodeDecodeError as e:
        line = e.object[: e.start].count(b"\n") + 1
        what = f"line {line} is no {encoding} text (byte 0x{e.object[e.start]:02x})"
        safe_read.refuse(path, what, "Set encoding to what it was written in")


@contextmanager
def _text(plain: Path, path: Path) -> Iterator[Any]:
    """The characters of a file; one that cannot be read is refused with its line."""
    try:
        with plain.open(encoding="utf-8-sig", newline="") as stream:
            yield stream
    except UnicodeDecodeError:
        instead = "Set encoding to what it was written in ('latin-1', 'cp1252'), or save it as UTF-8"
        for _ in safe_read.numbered_lines(plain, path, instead):  # the decoder reads ahead: find the line
            pass
        raise


def _first_record(plain: Path, path: Path, delimiter: str | None) -> tuple[list[str], int, str]:
    """The cells of the first record, the lines that it takes, and the delimiter (the one that the line has most of)."""
    with _text(plain, path) as stream:
        line = stream.readline()
        if not line.strip():
            safe_read.refuse(path, "is empty, or begins with an empty line", "Begin with the names of the columns")
        delimiter = delimiter or max(_DELIMITERS, key=line.count)
        stream.seek(0)
        records = reader(stream, delimiter=delimiter)
        return next(records), records.line_num, delimiter


def _check_names(path: Path, called: list[str], first: list[str], header: bool) -> None:
    if len(called) != len(first):
        raise DataError(f"data.names: has {len(called)} names for the {len(first)} columns of {path.name}.")
    twice = sorted({n for n in called if n and called.count(n) > 1})
    if twice:
        safe_read.refuse(
            path, f"has several columns called {safe_read.list_names(twice)}", "Give each a name of its own"
        )
    if header and all(is_number(n) for n in called):
        what = f"its first line holds numbers ({safe_read.list_names(first, 4)}), not the names of columns"
        safe_read.refuse(
            path, what, "Set header = false; the columns are then column0, column1, ... or what names says"
        )


def _blame(plain: Path, path: Path, delimiter: str, columns: int) -> None:
    """Find the line that is wrong, and refuse the file for it."""
    with _text(plain, path) as stream:
        records = reader(stream, delimiter=delimiter, strict=True)
        try:
            for cells in records:
                if len(cells) != columns:
                    what = f"line {records.line_num} has {len(cells)} cells, and there are {columns} columns"
                    safe_read.refuse(path, what, "Put cells that have a delimiter in them in quotes, or set delimiter")
        except Error as e:
            safe_read.refuse(path, f"line {records.line_num}: {e}", "See to its quotes")
