"""What has become of experiments, told by their folders alone: whoever ran them, and whenever."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from atoll.errors import RecordError
from atoll.runs import Folder
from atoll.runs.lifecycle import ended
from atoll.suites.sweeps import Cell
from atoll.suites.sweeps.sweep_folder import SweepFolder

FAILED = "failed: "
_LEFT_OVER = ("checkpoint.pt", "memory-*.rows")


class Standing:
    """The states of a suite's experiments. Look again after something was run: nothing is looked at twice."""

    def __init__(self, folder: Path) -> None:
        self.sweep = SweepFolder(folder)
        self._said = _said(self.sweep)
        self._infos: dict[str, dict[str, Any]] = {}

    def path(self, cell: Cell) -> Path:
        """The run's folder."""
        return self.sweep.place(cell)

    def info(self, cell: Cell) -> dict[str, Any]:
        """What its run.json says; nothing, if it was not begun."""
        if cell.digest not in self._infos:
            found: dict[str, Any] = {}
            with suppress(RecordError):
                found = Folder(self.path(cell)).info
            self._infos[cell.digest] = found if found.get("digest") == cell.digest else {}
        return self._infos[cell.digest]

    def done(self, cell: Cell) -> bool:
        """Did it reach its end?"""
        return bool(self.info(cell)) and ended(self.info(cell))

    def failed(self, cell: Cell) -> str | None:
        """Why it failed, if it did."""
        said = self._said.get(cell.digest, "")
        if self.done(cell):
            return None
        if said.startswith(FAILED):
            return said.removeprefix(FAILED)
        status = str(self.info(cell).get("status", ""))
        return status.removeprefix(FAILED) if status.startswith(FAILED) else None

    def diverged(self, cell: Cell) -> bool:
        """Did its numbers stop being numbers? They would again: that is a result, and is not tried twice."""
        return str(self.info(cell).get("status", "")) == f"{FAILED}DivergenceError"

    def over(self, cell: Cell) -> bool:
        """Is there nothing left to hope for?"""
        return self.done(cell) or self.failed(cell) is not None

    def left(self, cells: Sequence[Cell]) -> list[Cell]:
        """Those that are to be run: not done, and not known to diverge. What failed otherwise is tried again."""
        return [cell for cell in cells if not self.done(cell) and not self.diverged(cell)]


def _said(sweep: SweepFolder) -> dict[str, str]:
    """What sweep.json says of every experiment, also of those that the last plan did not have."""
    with suppress(RecordError):
        found = sweep.info()
        return {c["digest"]: str(c["state"]) for c in (*found.get("others", []), *found["cells"])}
    return {}


def tidy(folder: Path, models: bool) -> None:
    """Take away what a finished run leaves for a resume, which there will not be; also its model if `models`."""
    for pattern in (*_LEFT_OVER, *(["model.pt"] if models else [])):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
