"""What came of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from atoll.errors import RecordError
from atoll.records import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    REPORT,
    WAITING,
    RunFolder,
    SweepFolder,
    reached_end,
    why_failed,
)
from atoll.runs import Run
from atoll.suites.sweeps.axes import SweepCell


class Sweep:
    """Cells, the runs that came of them, and how each ended."""

    def __init__(self, folder: Path, cells: Sequence[SweepCell], states: Mapping[str, str]) -> None:
        self.folder = folder
        self.cells = list(cells)
        self.states = {cell.name: states.get(cell.name, WAITING) for cell in cells}
        places = SweepFolder(folder)
        self.folders = {cell.name: places.place(cell) for cell in cells}

    @property
    def runs(self) -> list[Run]:
        """The runs of the cells that are done, in the order of the cells."""
        return [Run(folder) for folder in self.done()]

    @property
    def failed(self) -> dict[str, str]:
        """Cells that failed, and why."""
        return {name: why for name, state in self.states.items() if (why := why_failed(state)) is not None}

    @property
    def status(self) -> str:
        """One of "finished", "interrupted" and "failed" (some cell did)."""
        if any(state in (WAITING, INTERRUPTED) for state in self.states.values()):
            return INTERRUPTED
        return FAILED if self.failed else FINISHED

    def run(self, cell: SweepCell | str) -> Run:
        """The run of one cell, as far as it went."""
        name = cell.name if isinstance(cell, SweepCell) else cell
        if name not in self.folders or not RunFolder(self.folders[name]).exists():
            raise RecordError(f"{self.folder}: has no run of {name!r}. Cells: {', '.join(self.folders)}.")
        return Run(self.folders[name])

    def report(self, out: Path | str | None = None) -> Path:
        """Write the report of all cells that are done; seeds of one setting are a group."""
        from atoll.report import write  # matplotlib is slow to import

        return write(self.done(), Path(out) if out is not None else self.folder / REPORT)

    def tables(self) -> list[Path]:
        """Write the final table of the same cells for papers and programs: table.md, table.tex, table.csv."""
        from atoll.report import write_table

        return [write_table(self.done(), self.folder / f"table.{kind}") for kind in ("md", "tex", "csv")]

    def done(self) -> list[Path]:
        """The folders of the cells that are done."""
        return [self.folders[cell.name] for cell in self.cells if reached_end(self.states[cell.name])]

    def __repr__(self) -> str:
        return f"Sweep({str(self.folder)!r}, {self.status}, {len(self.done())} of {len(self.cells)} cells)"
