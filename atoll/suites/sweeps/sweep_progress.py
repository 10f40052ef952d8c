"""A bar over the cells, and one for each that is under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import ProgressColumn, TaskID

from atoll.records import INTERRUPTED
from atoll.runs import LiveBar, live_progress, metric_in
from atoll.suites.sweeps.cell_tasks import Events


class CellsBar(LiveBar, Events):
    """`with CellsBar(12) as bar: atoll.sweep.run(..., events=bar)`."""

    def __init__(self, cells: int, console: Console | None = None, left: ProgressColumn | None = None) -> None:
        self.bar = live_progress(console, left)
        self.whole = self.bar.add_task("cells", total=cells, seen="")
        self.rows: dict[str, TaskID] = {}  # a cell that is under way -> its bar, one for all cells of a stack
        self.parts: dict[str, float] = {}  # how much of each cell is done, 0 to 1

    def began(self, names: Sequence[str]) -> None:
        if any(name not in self.rows for name in names):
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            row = self.bar.add_task(f"  {names[0]}{more}", total=None, seen="")
            for name in names:
                self._leave(name)
                self.rows[name] = row

    def round(self, names: Sequence[str], done: int, rounds: int, entry: Mapping[str, Any]) -> None:
        metric = metric_in(entry)
        seen = {} if metric is None else {"seen": f"{metric.replace('_', ' ')} {entry[metric]:.4g}"}
        if names[0] in self.rows:
            self.bar.update(self.rows[names[0]], completed=done, total=rounds, **seen)  # type: ignore[arg-type]
        self._advance(dict.fromkeys(names, min(1.0, done / rounds)))

    def ended(self, name: str, state: str) -> None:
        self._leave(name)
        if state != INTERRUPTED:
            self._advance({name: 1.0})

    def _leave(self, name: str) -> None:
        """A bar goes with the last of its cells."""
        row = self.rows.pop(name, None)
        if row is not None and row not in self.rows.values():
            self.bar.remove_task(row)

    def _advance(self, parts: Mapping[str, float]) -> None:
        self.parts |= parts
        self.bar.update(self.whole, completed=sum(self.parts.values()))
