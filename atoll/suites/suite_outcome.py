"""What came of a suite."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.records import FAILED, FINISHED, INTERRUPTED, Results, SuiteFolder
from atoll.suites.collect import Reader

if TYPE_CHECKING:
    from atoll.suites.run import Work


class Bench:
    """A suite that was run: its results, how far it came, and what failed."""

    def __init__(self, folder: Path, work: Work, stopped: bool, late: bool) -> None:
        self.folder, self.work = folder, work
        self.late = late  # the budget was used up
        self._stopped = stopped

    @cached_property
    def results(self) -> Results:
        """What results.json holds."""
        return SuiteFolder(self.folder).results()

    @property
    def failed(self) -> dict[str, str]:
        """Cells of this call that failed, and why. A trial that diverged is not one: it has the worst score."""
        reasons: dict[str, str] = {}
        for cell in self.results.cells:
            if (cell.block, cell.name) in self.work.wanted:
                whole = bool(cell.trials) and not cell.settings  # no trial is left to choose
                reasons |= {f"{cell.name}, {k}": w for k, w in cell.failed.items() if whole or not _diverged(k, w)}
        return reasons

    @cached_property
    def left(self) -> int:
        """Cells of this call that do not have all their runs yet, and have not failed either."""
        suite = SuiteFolder(self.folder)
        reader = Reader(self.work.suite, suite, self.work.tuning)
        unfinished = 0
        for job in self.work.chosen:
            option = reader.chosen(job)
            cells = option.finals if option else [c for o in job.options for c in o.trials]
            unfinished += not all(suite.over(cell) for cell in cells)
        return unfinished

    @property
    def status(self) -> str:
        """One of "finished", "interrupted" and "failed" (some cell did)."""
        if self.left:  # stopped with nothing left is done
            return INTERRUPTED
        return FAILED if self.failed else FINISHED

    def report(self) -> Path | None:
        """Write the suite's page; None where there is nothing yet to show."""
        if not any(cell.runs for cell in self.results.cells):
            return None
        from atoll.report.suite import write  # matplotlib is slow to import

        return write(self.results, self.folder)

    def __repr__(self) -> str:
        done = sum(len(c.runs) >= c.wanted for c in self.results.cells)
        return f"Bench({str(self.folder)!r}, {self.status}, {done} of {len(self.results.cells)} cells)"


def _diverged(key: str, why: str) -> bool:
    return key.startswith("trial") and ("not finite" in why or "DivergenceError" in why)
