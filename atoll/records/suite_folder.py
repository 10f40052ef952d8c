"""A suite is a sweep's folder with results.json: whoever ran its experiments, and whenever, the folder says it all."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from atoll.errors import RecordError
from atoll.records import layout
from atoll.records.cells import Results
from atoll.records.results_file import read_results, write_results
from atoll.records.run_folder import Info, RunFolder
from atoll.records.status import ended, failed, why_failed
from atoll.records.sweep_folder import CellKey, SweepFolder

C = TypeVar("C", bound=CellKey)
_DIVERGED = failed("DivergenceError")


class SuiteFolder:
    """What became of a suite's experiments. Open it again after something was run: nothing is looked at twice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sweep = SweepFolder(path)
        self.results_path = path / layout.RESULTS
        self._states = {entry["digest"]: str(entry["state"]) for entry in self.sweep.listed()}
        self._infos: dict[str, Info] = {}

    def claim(self, resume: bool) -> None:
        """Refuse a folder that holds runs already, unless it is to be gone on with."""
        if not resume and (self.sweep.exists() or self.results_path.exists()):
            raise RecordError(
                f"{self.path}: holds runs of a suite already. Go on with them (--resume: what is done is kept, and "
                "more is added), or name another folder with --out."
            )

    def write(self, results: Results) -> None:
        """Replace results.json."""
        write_results(results, self.results_path)

    def results(self) -> Results:
        """What results.json holds."""
        return read_results(self.results_path)

    def run(self, cell: CellKey) -> RunFolder:
        """The folder of an experiment, begun or not."""
        return RunFolder(self.sweep.place(cell))

    def info(self, cell: CellKey) -> Info:
        """What its run.json says; {} if it was not begun."""
        if cell.digest not in self._infos:
            info: Info = {}
            with suppress(RecordError):
                info = self.run(cell).info
            self._infos[cell.digest] = info if info.get("digest") == cell.digest else {}
        return self._infos[cell.digest]

    def done(self, cell: CellKey) -> bool:
        """Did it reach its end?"""
        return ended(self.info(cell) or None)

    def failed(self, cell: CellKey) -> str | None:
        """Why it failed, if it did. sweep.json has the whole message, run.json only the kind of error.

        Files are named from this folder, so that results can be copied elsewhere.
        """
        if self.done(cell):
            return None
        why = why_failed(self._states.get(cell.digest, ""))
        if why is None:
            return why_failed(self._status(cell))
        return why.replace(f"{self.path.resolve()}/", "").replace(f"{self.path}/", "")

    def diverged(self, cell: CellKey) -> bool:
        """Did its numbers stop being numbers? They would again: that is a result, and is not tried twice."""
        return self._status(cell) == _DIVERGED

    def over(self, cell: CellKey) -> bool:
        """Is there nothing left to hope for?"""
        return self.done(cell) or self.failed(cell) is not None

    def left(self, cells: Sequence[C]) -> list[C]:
        """Those that are to be run: not done, and not known to diverge. What failed otherwise is tried again."""
        return [cell for cell in cells if not self.done(cell) and not self.diverged(cell)]

    def _status(self, cell: CellKey) -> str:
        return str(self.info(cell).get("status", ""))
