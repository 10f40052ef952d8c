"""Listens to a sweep: finished runs lose what only a resume would need, and the rest is passed on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.records import RunFolder, SuiteFolder, reached_end
from atoll.suites.sweeps import Events, SweepCell


class Tidying(Events):
    """Events of a suite's sweeps; also knows whether one was stopped."""

    def __init__(self, folder: Path, inner: Events, trials: Collection[str]) -> None:
        self.folder, self.inner, self.trials = folder, inner, trials  # digests of what is only a trial
        self.stopped = False
        self._folders: dict[str, tuple[RunFolder, bool]] = {}  # a cell's folder, and whether it is a trial's

    def expect(self, cells: Sequence[SweepCell], left: Sequence[SweepCell]) -> None:
        """A stage begins: these are its cells, and these are left to run."""
        suite = SuiteFolder(self.folder)
        self._folders = {cell.name: (suite.run(cell), cell.digest in self.trials) for cell in left}
        self.inner.expect(cells, left)

    def began(self, names: Sequence[str]) -> None:
        self.inner.began(names)

    def round(self, names: Sequence[str], done: int, rounds: int, entry: Mapping[str, Any]) -> None:
        self.inner.round(names, done, rounds, entry)

    def ended(self, name: str, state: str) -> None:
        """Tidy up, and pass it on."""
        if name in self._folders and reached_end(state):
            folder, trial = self._folders[name]
            folder.discard(model=trial)
        self.inner.ended(name, state)
