"""The record lines of many folders as one DuckDB relation, for questions this report does not answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.records import RunFolder, read_runs

if TYPE_CHECKING:
    import duckdb

LINES = """
    select run.folder, run.label, run.seed, line.* exclude (filename)
    from read_json($files, format = 'newline_delimited', filename = true, union_by_name = true,
                   sample_size = -1, maximum_object_size = 268435456, ignore_errors = true) as line
    join run on run.file = line.filename
    where line.round is not null
"""


def table(folders: Sequence[Path]) -> duckdb.DuckDBPyRelation:
    """Every complete line of every folder, with `folder`, `label` and `seed` in front.

    A torn last line is left out; a line broken elsewhere is refused, as in `read`. After a resume a round may stand
    twice; the later line counts elsewhere, here you see both.

        table(folders).aggregate("label, max(accuracy)", "label")
    """
    import duckdb  # here, so that reports and suites start without it

    records = read_runs(folders)
    files = {str(RunFolder(record.folder).record_path): record for record in records}
    connection = duckdb.connect()
    connection.execute("create table run (file varchar, folder varchar, label varchar, seed bigint)")
    connection.executemany(
        "insert into run values (?, ?, ?, ?)",
        [[file, str(record.folder), record.label, record.seed] for file, record in files.items()],
    )
    return connection.sql(LINES, params={"files": list(files)})
